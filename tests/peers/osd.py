"""An object-based storage device, driven by lab/osd.py: every service action, open-osd's ways, and kill -9."""

from peers import osd_attach, osd_attributes, osd_data, osd_durable, osd_security, osd_sets

CASES = [*osd_data.CASES, *osd_attributes.CASES, *osd_sets.CASES, *osd_attach.CASES, *osd_security.CASES, *osd_durable.CASES]
