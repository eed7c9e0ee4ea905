//! The operator for joining two texts or lists, and lists in brackets, as functions that count.

use std::sync::Arc;

use arrow::array::{RecordBatch, RecordBatchOptions};
use arrow::datatypes::{DataType, Field, Schema};
use datafusion::common::utils::{list_ndims, take_function_args};
use datafusion::common::{DFSchema, Result, internal_err};
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::planner::{ExprPlanner, PlannerResult, RawBinaryExpr};
use datafusion::logical_expr::type_coercion::binary::BinaryTypeCoercer;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ExprSchemable as _, Operator, ScalarFunctionArgs, ScalarUDF,
    ScalarUDFImpl, Signature, Volatility,
};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{BinaryExpr, Column, Literal};
use datafusion::sql::sqlparser::ast::BinaryOperator;

/// The function that joins two texts and is null where one of them is, as PostgreSQL names it.
const TEXT_CONCAT: &str = "textcat";

/// Plans operators by the functions of a session, which count what they make.
#[derive(Debug)]
pub(crate) struct GrowingOperators {
    /// Those of `growing_functions`.
    pub(crate) functions: Vec<ScalarUDF>,
}

impl GrowingOperators {
    fn call(&self, name: &str, args: Vec<Expr>) -> Result<Expr> {
        match self.functions.iter().find(|function| function.name() == name) {
            Some(function) => {
                let function = Arc::new(function.clone());
                Ok(Expr::ScalarFunction(ScalarFunction::new_udf(function, args)))
            }
            None => internal_err!("the session has no function {name}"),
        }
    }
}

impl ExprPlanner for GrowingOperators {
    fn plan_binary_op(
        &self,
        expr: RawBinaryExpr,
        schema: &DFSchema,
    ) -> Result<PlannerResult<RawBinaryExpr>> {
        if expr.op != BinaryOperator::StringConcat {
            return Ok(PlannerResult::Original(expr));
        }
        let RawBinaryExpr { left, right, .. } = expr;
        let (of_left, of_right) =
            (list_ndims(&left.get_type(schema)?), list_ndims(&right.get_type(schema)?));
        let name = match of_left.cmp(&of_right) {
            std::cmp::Ordering::Equal if of_left == 0 => TEXT_CONCAT,
            std::cmp::Ordering::Equal => "array_concat",
            std::cmp::Ordering::Greater => "array_append",
            std::cmp::Ordering::Less => "array_prepend",
        };
        Ok(PlannerResult::Planned(self.call(name, vec![left, right])?))
    }

    fn plan_array_literal(
        &self,
        exprs: Vec<Expr>,
        _schema: &DFSchema,
    ) -> Result<PlannerResult<Vec<Expr>>> {
        Ok(PlannerResult::Planned(self.call("make_array", exprs)?))
    }
}

/// The operator `||` of two texts as a function.
pub(super) fn text_concat() -> ScalarUDF {
    ScalarUDF::from(TextConcat { signature: Signature::user_defined(Volatility::Immutable) })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct TextConcat {
    signature: Signature,
}

impl ScalarUDFImpl for TextConcat {
    fn name(&self) -> &str {
        TEXT_CONCAT
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arg_types: &[DataType]) -> Result<DataType> {
        let [left, right] = take_function_args(TEXT_CONCAT, arg_types)?;
        BinaryTypeCoercer::new(left, &Operator::StringConcat, right).get_result_type()
    }

    fn coerce_types(&self, arg_types: &[DataType]) -> Result<Vec<DataType>> {
        let [left, right] = take_function_args(TEXT_CONCAT, arg_types)?;
        let (left, right) =
            BinaryTypeCoercer::new(left, &Operator::StringConcat, right).get_input_types()?;
        Ok(vec![left, right])
    }

    /// As the operator would be written.
    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        let [left, right] = take_function_args(TEXT_CONCAT, args)?;
        Ok(format!("{} || {}", left.schema_name(), right.schema_name()))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let (mut fields, mut columns) = (Vec::new(), Vec::new());
        let mut operand = |value: ColumnarValue| -> Arc<dyn PhysicalExpr> {
            match value {
                ColumnarValue::Scalar(one) => Arc::new(Literal::new(one)),
                ColumnarValue::Array(values) => {
                    let (place, kind) = (columns.len(), values.data_type().clone());
                    fields.push(Field::new(place.to_string(), kind, true));
                    columns.push(values);
                    Arc::new(Column::new(&place.to_string(), place))
                }
            }
        };
        let [left, right] = take_function_args(TEXT_CONCAT, args.args)?;
        let (left, right) = (operand(left), operand(right));
        let is_constant = columns.is_empty();
        let rows = if is_constant { 1 } else { args.number_rows };
        let batch = RecordBatch::try_new_with_options(
            Arc::new(Schema::new(fields)),
            columns,
            &RecordBatchOptions::new().with_row_count(Some(rows)),
        )?;
        BinaryExpr::new(left, Operator::StringConcat, right).evaluate(&batch)
    }
}
