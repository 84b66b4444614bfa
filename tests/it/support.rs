//! What tests share: a database each, real servers, a scripted model.

pub mod model;
