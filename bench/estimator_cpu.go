// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	"github.com/conch-serving/conch/internal/figure"
)

func (b *bench) estimatorCPU(context.Context, *figure.Report) error { return nil }
