//! Makes a PNG of a picture in SVG.

use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::{Options, Tree};

/// Pixels for each unit of the picture: for screens with small ones.
const SCALE: f32 = 2.0;

/// Draws a picture.
///
/// # Errors
/// If the machine has no fonts.
pub(super) fn of(svg: &str) -> Result<Vec<u8>, String> {
    let mut options = Options::default();
    let fonts = options.fontdb_mut();
    fonts.load_system_fonts();
    let families = ["DejaVu Sans", "Liberation Sans", "Noto Sans", "Arial", "Helvetica"];
    let has = |name: &&str| fonts.faces().any(|f| f.families.iter().any(|(n, _)| n == name));
    let first = fonts.faces().next().and_then(|f| f.families.first().map(|(n, _)| n.clone()));
    let Some(family) = families.iter().find(|n| has(n)).map(|n| (*n).to_owned()).or(first) else {
        let text = "this machine has no fonts, which a PNG needs: save the graph as .svg, or install fonts such as \
             those of Debian's package fonts-dejavu-core";
        return Err(text.into());
    };
    fonts.set_sans_serif_family(family);
    let tree = Tree::from_str(svg, &options).map_err(|e| format!("the picture is no SVG: {e}"))?;
    let size = tree.size().to_int_size().scale_by(SCALE).ok_or("the picture has no size")?;
    let mut pixels = Pixmap::new(size.width(), size.height()).ok_or("the picture is too large")?;
    resvg::render(&tree, Transform::from_scale(SCALE, SCALE), &mut pixels.as_mut());
    pixels.encode_png().map_err(|e| format!("the PNG can't be written: {e}"))
}
