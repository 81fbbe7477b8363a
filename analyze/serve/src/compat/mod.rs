//! bytehound's routes, parameters and shapes.

use crate::route::Route;

/// All routes.
pub(crate) const ROUTES: &[Route] = &[];
