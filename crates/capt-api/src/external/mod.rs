//! The parts that CAPT reads of kinds that others define. They are as small as possible and parse leniently: an odd or
//! half-filled object of somebody else must never blind a controller to all the others.

pub mod cluster;
pub mod workspace;
