//! inject/trace
#![no_std]
