//! The iSCSI target: portals, logins, sessions on many cores, task routing.
