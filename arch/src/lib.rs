//! arch
#![no_std]
