//! The way of a request to the service: whether it runs now, waits for this node to serve, or is refused.

pub(crate) mod admitted;
pub(crate) mod caller_thread;
pub(crate) mod context;
pub(crate) mod delayed_change;
pub(crate) mod entrance;
pub(crate) mod in_flight_requests;
pub(crate) mod parked_requests;
pub(crate) mod refuse;
pub(crate) mod request_info;
pub(crate) mod standby_queue;
pub(crate) mod tenure_bond;
pub(crate) mod waiting_notice;
