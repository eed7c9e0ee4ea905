//! The feed in a program: a receiver that runs in a thread and hands over messages.

pub use evenfall_multicast_service::settings::{Settings, Subscription};
pub use evenfall_multicast_service::subscriber::{
    FeedUpdate, QueueLimits, ReleasedMessage, SubscribeError, Subscriber, UpdateBatch,
    UpdateBatches, WakeCall,
};
pub use evenfall_multicast_service::{Config, RoleError};
