#pragma once

#include <string>

#include "dataplane/cost/cost_model.h"
#include "dataplane/fit/measure.h"

namespace millrace::dataplane::fit {

/// An SVG drawing: predicted against measured milliseconds of every step, prefill and decode, on
/// logarithmic axes; on the diagonal the prediction is right.
std::string draw_fit(const Measured& measured, const cost::CostModel& prefill,
                     const cost::DecodeCostModel& decode, const std::string& title);

}  // namespace millrace::dataplane::fit
