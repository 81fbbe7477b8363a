#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| prof_fuzz::script(bytes));
