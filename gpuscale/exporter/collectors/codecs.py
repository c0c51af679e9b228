"""Video engines: how busy they are."""

from functools import partial

from gpuscale.exporter.device import Codec, Device
from gpuscale.exporter.gather import Gathering
from gpuscale.exporter.sample import Reading, Tier

ENCODER = "gpuscale_gpu_encoder_utilization_ratio"
DECODER = "gpuscale_gpu_decoder_utilization_ratio"
CODECS: tuple[tuple[Codec, str], ...] = (("encoder", ENCODER), ("decoder", DECODER))


class CodecCollector:
    """Encoder and decoder."""

    name = "codecs"
    tier = Tier.MEDIUM
    families = (ENCODER, DECODER)

    def read(self, device: Device, state: dict[str, float], elapsed_s: float | None) -> Reading:
        """Read both once."""
        gathering = Gathering()
        for codec, family in CODECS:
            ratio = gathering.ask(partial(device.codec_utilization, codec), family)
            if ratio is not None:
                gathering.add(family, ratio)
        return gathering.reading()
