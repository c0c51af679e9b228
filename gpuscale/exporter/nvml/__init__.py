"""The real driver behind the Protocols of device.py, through libnvidia-ml.so.1. pynvml is called in call.py alone.

    driver    the session: open, enumerate, close
    device    one GPU: which call gives which quantity
    fields    counters that come as field values
    gpm       the hardware counters of Hopper and later
    mig       the instances a GPU is divided into
    processes who runs on a GPU
    events    errors that the driver announces
    library   where the library lies when the loader does not know
    check     what can be true
    call      the door

Every call may block in the driver for milliseconds or for ever: call from a thread that may be
given up. What NVML answers leaves these rooms only as a checked value or as an error of errors.py.
"""

from gpuscale.exporter.nvml.driver import NvmlDriver as NvmlDriver
