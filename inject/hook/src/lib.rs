//! inject/hook
#![no_std]
