//! Networks: nothing but an entry in the ledger, with the one rule of the real cloud that matters here: a network in use stays.

use anyhow::{Result, bail};

use super::Cloud;
use super::inputs::Inputs;
use super::ledger::{Entry, Kind};

pub(super) async fn apply(cloud: &Cloud<'_>) -> Result<()> {
    let inputs = Inputs::from_environment()?;
    let name = inputs.name()?;
    // What is wrong with the input is said at once, and not after a slow start.
    check(&inputs)?;
    cloud.faults.before_apply(name, &inputs).await?;
    let _lock = cloud.ledger.lock(Kind::Vpc, name).await?;
    let wanted = Entry::new(Kind::Vpc, name, &inputs);
    let entry = match cloud.ledger.get(Kind::Vpc, name)? {
        Some(existing) => {
            for fixed in ["region", "cidr"] {
                if existing.input(fixed) != wanted.input(fixed) {
                    bail!(
                        "{fixed} of the VPC {name} cannot be changed from {} to {}: delete it first",
                        existing.input(fixed),
                        wanted.input(fixed)
                    );
                }
            }
            Entry {
                inputs: wanted.inputs,
                ..existing
            }
        }
        None => wanted,
    };
    cloud.ledger.put(&entry)?;
    println!("VPC {name} is there");
    Ok(())
}

pub(super) async fn delete(cloud: &Cloud<'_>) -> Result<()> {
    let inputs = Inputs::from_environment()?;
    let name = inputs.name()?;
    cloud.faults.before_destroy(name, &inputs).await?;
    let _lock = cloud.ledger.lock(Kind::Vpc, name).await?;
    if let Some(entry) = cloud.ledger.get(Kind::Vpc, name)? {
        let id = entry.input("vpc_id");
        let users: Vec<String> = cloud
            .ledger
            .entries()?
            .into_iter()
            .filter(|e| e.kind == Kind::Cluster && e.input("vpc_id") == id)
            .map(|e| e.name)
            .collect();
        // The real cloud refuses it too: whoever deletes in the wrong order learns it here.
        if !users.is_empty() {
            bail!(
                "DependencyViolation: the vpc '{id}' has dependencies and cannot be deleted: {}",
                users.join(", ")
            );
        }
    }
    cloud.ledger.remove(Kind::Vpc, name)?;
    cloud.faults.forget(name)?;
    println!("VPC {name} is gone");
    Ok(())
}

fn check(inputs: &Inputs) -> Result<()> {
    inputs.check_region()?;
    inputs.check_text("cluster_name")?;
    inputs.check_text("vpc_name")?;
    inputs.check_vpc_id()?;
    inputs.check_cidr("cidr")
}
