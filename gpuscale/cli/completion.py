"""`gpuscale completion`: what a shell needs to complete commands, options and files."""

import click


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion of commands for a shell.

    Put it where the shell reads it at its start: ~/.bashrc, a directory of zsh's fpath, or
    ~/.config/fish/completions/gpuscale.fish.
    """
    from click import shell_completion

    root = ctx.find_root()
    kind = shell_completion.get_completion_class(shell)
    assert kind is not None  # the argument's choices are click's own
    name = root.info_name or "gpuscale"
    click.echo(kind(root.command, {}, name, f"_{name.upper()}_COMPLETE").source())
