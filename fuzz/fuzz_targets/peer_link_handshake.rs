#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| stag_fuzz_entry::peer_link::handshake(data));
