// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package zoo holds published latency profiles of real models and writes model directories that emulate them.
//
// The profiles are those of "Symphony: Optimized DNN Model Serving using Deferred Batch Scheduling", Tables 2, 3 and 4: a batch of b
// rows takes beta + alpha*b. They stand in for GPUs that the reader does not have; whatever is measured with them is emulated and says
// so.
package zoo
