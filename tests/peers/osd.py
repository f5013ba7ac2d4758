"""An object-based storage device, driven by lab/osd.py: every service action, open-osd's ways, kill -9, and a daemon that is managed meanwhile."""

from peers import osd_attach, osd_attributes, osd_data, osd_durable, osd_managed, osd_security, osd_sets

CASES = [*osd_data.CASES, *osd_attributes.CASES, *osd_sets.CASES, *osd_attach.CASES, *osd_security.CASES, *osd_durable.CASES,
         *osd_managed.CASES]
