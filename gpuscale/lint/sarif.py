"""Findings as SARIF 2.1.0, which code review understands (GitHub, GitLab, Azure)."""

from collections.abc import Sequence
from typing import Any

from gpuscale.lint.finding import Finding, Severity
from gpuscale.lint.rules import RULES

_LEVELS: dict[Severity, str] = {"info": "note", "warning": "warning", "error": "error"}


def document(findings: Sequence[Finding], *, version: str) -> dict[str, Any]:
    """The log of one run; only the rules that were broken are described."""
    ids = sorted({f.rule.id for f in findings})
    index = {id_: i for i, id_ in enumerate(ids)}
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "gpuscale",
                        "version": version,
                        "rules": [_rule(id_) for id_ in ids],
                    }
                },
                "results": [_result(f, index[f.rule.id]) for f in findings],
            }
        ],
    }


def _rule(id_: str) -> dict[str, Any]:
    rule = RULES[id_]
    return {
        "id": id_,
        "shortDescription": {"text": rule.title},
        "fullDescription": {"text": rule.why},
        "help": {"text": rule.cure},
        "defaultConfiguration": {"level": _LEVELS[rule.severity]},
    }


def _result(finding: Finding, index: int) -> dict[str, Any]:
    place: dict[str, Any] = {
        "logicalLocations": [
            {"fullyQualifiedName": f"{finding.object}: {finding.where}", "kind": "resource"}
        ]
    }
    if finding.file and finding.file != "-":
        place["physicalLocation"] = {
            "artifactLocation": {"uri": finding.file.replace("\\", "/")},
            "region": {"startLine": finding.line or 1},
        }
    return {
        "ruleId": finding.rule.id,
        "ruleIndex": index,
        "level": _LEVELS[finding.severity],
        "message": {"text": f"{finding.object}: {finding.sentence}. {finding.rule.cure}"},
        "locations": [place],
    }
