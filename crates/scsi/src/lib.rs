//! SCSI commands, data, sense and reservations as bytes and state machines: no I/O.
