// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import "github.com/conch-serving/conch/internal/figure"

// differences explain where reproduce and what was published differ.
func differences() []figure.Remark {
	return nil
}
