//! What a job is given before it runs: its folders, and its supervisor's orders.

use protocol::desired::Assignment;

use crate::node::{Node, containers, devices, launch, walls, workdir};
use crate::points::Point;
use crate::runs::Refusal;
use crate::supervise::devices::DeviceFile;

/// The device files that a job may open.
pub(super) enum Open {
    /// As a process: none where it is barred from none.
    Process(Option<Vec<DeviceFile>>),
    /// As a container, which finds no others.
    Container(walls::Files),
}

/// Lays out an assignment and writes its orders.
pub(super) fn prepare(
    node: &Node,
    assignment: &Assignment,
    view: &devices::View,
    open: Open,
) -> Result<(), Refusal> {
    let layout = workdir::lay_out(node, assignment)?;
    Point::LaidOut.reached();
    let run = node.folders.run(assignment.id);
    let orders = match open {
        Open::Process(open) => launch::orders(node, assignment, &layout, view, open, None),
        Open::Container(files) => {
            let container = containers::container(node, assignment, &layout, view, &files)?;
            launch::orders(node, assignment, &layout, view, None, container)
        }
    };
    let failed = |e| Refusal::here(format!("its run folder cannot be written: {e}"));
    run.create().map_err(failed)?;
    Point::RunFolderMade.reached();
    run.write_orders(&orders).map_err(failed)?;
    Point::Ordered.reached();
    Ok(())
}
