//! An iSCSI initiator library: sessions, multi-connection, block access, reconnect.
