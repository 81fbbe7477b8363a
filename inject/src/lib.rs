//! inject
