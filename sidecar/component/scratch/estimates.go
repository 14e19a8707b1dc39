// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package scratch

import (
	"fmt"
	"time"

	"github.com/conch-serving/conch/estimator"
	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/config"
	"github.com/conch-serving/conch/sidecar/control/estimates"
)

// NewEstimates makes the book of estimates of the store's models. Bundles are those that conch calibrated itself; what
// conch.yaml names wins over them.
func NewEstimates(settings config.Estimates, store *repo.Store, bundles []*estimator.Bundle) (*estimates.Book, error) {
	o := estimates.Options{
		Open: func(f repo.File) (estimates.File, error) { return store.Open(f) }, Now: time.Now, After: time.After,
	}
	for _, path := range settings.Bundles {
		bundle, err := estimator.ReadBundle(path)
		if err != nil {
			return nil, fmt.Errorf("estimates.bundles: %w", err)
		}
		o.Bundles = append(o.Bundles, bundle)
	}
	o.Bundles = append(o.Bundles, bundles...)
	return estimates.New(o), nil
}
