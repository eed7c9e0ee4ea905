//! Constants that are columns of a result.
//!
//! A constant is one value until it becomes a column. Then there is a copy for each row of a batch:
//! eight gigabytes, when a text of a mebibyte stands beside 8,192 rows.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{FieldRef, Schema};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult as _, TreeNode as _};
use datafusion::common::{Result, ScalarValue};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool};
use datafusion::logical_expr::ColumnarValue;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Literal;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::projection::{ProjectionExec, ProjectionExpr};

/// Smaller constants are columns without being counted. 8,192 of them take 8 MiB.
const UNCOUNTED_BYTES: usize = 1 << 10;

/// Lets large constants that are columns ask for their memory.
#[derive(Debug)]
pub(crate) struct CountConstants {
    pub(crate) pool: Arc<dyn MemoryPool>,
}

impl PhysicalOptimizerRule for CountConstants {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        _config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let counted = |plan: Arc<dyn ExecutionPlan>| {
            let Some(projection) = plan.downcast_ref::<ProjectionExec>() else {
                return Ok(Transformed::no(plan));
            };
            let is_large = |column: &ProjectionExpr| {
                let constant = column.expr.downcast_ref::<Literal>();
                constant.filter(|constant| constant.value().size() > UNCOUNTED_BYTES).cloned()
            };
            if !projection.expr().iter().any(|column| is_large(column).is_some()) {
                return Ok(Transformed::no(plan));
            }
            let columns = projection.expr().iter().map(|column| match is_large(column) {
                Some(constant) => {
                    let pool = Arc::clone(&self.pool);
                    let expr = Arc::new(CountedConstant { constant, pool }) as _;
                    ProjectionExpr { expr, alias: column.alias.clone() }
                }
                None => column.clone(),
            });
            let input = Arc::clone(projection.input());
            Ok(Transformed::yes(Arc::new(ProjectionExec::try_new(columns, input)?) as _))
        };
        plan.transform_up(counted).data()
    }

    fn name(&self) -> &str {
        "count_constants"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// A constant that asks for the memory of its column before the column is made.
#[derive(Debug)]
struct CountedConstant {
    constant: Literal,
    pool: Arc<dyn MemoryPool>,
}

impl PartialEq for CountedConstant {
    fn eq(&self, other: &Self) -> bool {
        self.constant == other.constant
    }
}

impl Eq for CountedConstant {}

impl Hash for CountedConstant {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.constant.hash(state);
    }
}

impl fmt::Display for CountedConstant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a constant of {} bytes", self.constant.value().size())
    }
}

impl PhysicalExpr for CountedConstant {
    fn return_field(&self, input_schema: &Schema) -> Result<FieldRef> {
        self.constant.return_field(input_schema)
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<ColumnarValue> {
        let value: &ScalarValue = self.constant.value();
        // The column is made as soon as this returns, and is then in a batch.
        let share = MemoryConsumer::new("a constant beside rows").register(&self.pool);
        share.try_grow(value.size().saturating_mul(batch.num_rows()))?;
        Ok(ColumnarValue::Scalar(value.clone()))
    }

    fn children(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        Vec::new()
    }

    fn with_new_children(
        self: Arc<Self>,
        _children: Vec<Arc<dyn PhysicalExpr>>,
    ) -> Result<Arc<dyn PhysicalExpr>> {
        Ok(self)
    }

    fn fmt_sql(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.constant.fmt_sql(f)
    }
}
