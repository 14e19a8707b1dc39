// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package report shows results of the simulator, one run or several side by side: as a table, as JSON, and as one HTML page that stands alone:
// question, verdict with its uncertainty, set-up, figures, and what is not known. The same results give the same bytes.
package report
