#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| baton_fuzz::console_client::run(data));
