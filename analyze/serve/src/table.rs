//! All routes: one table that the router, the checks of parameters, and the OpenAPI document are made from.

use crate::route::Route;

/// Returns all routes.
pub(crate) fn routes() -> impl Iterator<Item = &'static Route> {
    crate::api::ROUTES.iter().chain(crate::compat::ROUTES)
}
