//! iSCSI (RFC 7143) without I/O: PDUs, negotiation, login, sessions of targets and initiators.
