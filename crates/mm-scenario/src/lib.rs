//! The scenario language, observations and their comparison.
