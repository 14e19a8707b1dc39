// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package advise says what Conch would gain a team: it compares, in the simulator, Triton's own dynamic batching with Conch's adaptive
// discipline, over the GPUs, the placement, the profiles and the traffic of a live system, and says how sure it is; or that it is not.
package advise
