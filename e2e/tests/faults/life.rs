//! What comes and goes in a trial, by the controller that is tried.

use anyhow::{Context, Result};
use capt_e2e::components::{CONTROLLERS, TENANT_CONTROLLER};

use crate::observer::World;
use crate::trial::Run;
use crate::{cluster, tenant};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Life {
    Cluster,
    Tenant,
}

impl Life {
    pub(crate) const ALL: [Self; 2] = [Self::Cluster, Self::Tenant];

    /// The one that a controller has a part in.
    pub(crate) fn of(controller: &str) -> Self {
        match controller {
            TENANT_CONTROLLER => Self::Tenant,
            _ => Self::Cluster,
        }
    }

    /// Everybody who has a part in it.
    pub(crate) fn controllers(self) -> Vec<&'static str> {
        match self {
            Self::Cluster => CONTROLLERS.iter().map(|own| own.name).collect(),
            Self::Tenant => vec![TENANT_CONTROLLER],
        }
    }

    pub(crate) async fn create(self, run: &Run<'_>) -> Result<()> {
        let created = match self {
            Self::Cluster => cluster::create(run).await,
            Self::Tenant => tenant::create(run).await,
        };
        created.context("it cannot be made")
    }

    /// Why it is not up yet.
    pub(crate) fn is_not_up(self, world: &World) -> Option<String> {
        match self {
            Self::Cluster => cluster::is_not_available(world),
            Self::Tenant => tenant::is_not_ready(world),
        }
    }

    pub(crate) async fn delete(self, run: &Run<'_>) -> Result<()> {
        match self {
            Self::Cluster => cluster::delete(run).await,
            Self::Tenant => tenant::delete(run).await,
        }
    }

    /// That nothing was made twice, and that everything went in its order.
    pub(crate) fn check_history(self, world: &World) -> Result<()> {
        world.nothing_was_made_twice()?;
        match self {
            Self::Cluster => cluster::check_order(world),
            Self::Tenant => tenant::check_order(world),
        }
    }
}
