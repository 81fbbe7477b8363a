//! inject/collect
