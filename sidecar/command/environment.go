// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package command

import (
	"fmt"
	"os"
	"strings"

	"github.com/conch-serving/conch/sidecar/config"
	"github.com/conch-serving/conch/sidecar/dispatch/queue"
	"github.com/conch-serving/conch/sidecar/plan"
)

// Environment is what the configuration asks of this process, and of packages that
// it may not know.
func Environment() config.Environment {
	return config.Environment{UID: os.Getuid(), Getenv: os.Getenv, CheckDiscipline: CheckDiscipline}
}

// CheckDiscipline says why the queue would refuse a discipline or a drop policy,
// each empty where there is none.
func CheckDiscipline(discipline string, parameters map[string]string, dropPolicy string) error {
	if discipline != "" {
		if _, err := queue.NewDiscipline(discipline, parameters); err != nil {
			if why := plan.SimulatedOnly(discipline); why != "" {
				return fmt.Errorf("discipline %q runs in simulations only (tritonctl simulate): %s; there are %s", discipline, why, strings.Join(queue.Names(), ", "))
			}
			return err
		}
	}
	if dropPolicy != "" {
		if _, err := queue.NewDropPolicy(dropPolicy); err != nil {
			return err
		}
	}
	return nil
}
