// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package advise

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/bubble"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/admin/client"
	"github.com/conch-serving/conch/sidecar/sim/advise"
)

// What was just measured is believed before what conch.yaml declares, and what is in --grid before both.
func TestDeclaredTimesYieldToMeasuredOnes(t *testing.T) {
	answers := http.NewServeMux()
	for path, answer := range map[string]string{
		"/v1/snapshot": `{}`,
		"/v1/version":  `{"mode":"observe","driver":"attach"}`,
		"/v1/models": `[{"name":"declared","max_batch_size":5,"declared_alpha_seconds":0.001,"declared_beta_seconds":0.004},
{"name":"measured","max_batch_size":5,"declared_alpha_seconds":0.001,"declared_beta_seconds":0.004},
{"name":"single","max_batch_size":5,"declared_alpha_seconds":0.001,"declared_beta_seconds":0.004},
{"name":"given","max_batch_size":5,"declared_alpha_seconds":0.001,"declared_beta_seconds":0.004}]`,
	} {
		answers.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, answer) })
	}
	server := httptest.NewServer(answers)
	defer server.Close()
	conch, err := client.New(server.URL)
	require.NoError(t, err)
	defer conch.Close()
	grid := advise.Grid{1: time.Millisecond, 2: 2 * time.Millisecond}
	in := advise.Input{Grids: map[string]advise.Grid{"given": grid}, Counted: map[string][]advise.Executions{
		"measured": {{Rows: 1, Count: 9, Mean: time.Millisecond}, {Rows: 5, Count: 9, Mean: 2 * time.Millisecond}},
		"single":   {{Rows: 1, Count: 9, Mean: time.Millisecond}, {Rows: 2, Count: 1, Mean: 2 * time.Millisecond}},
	}}
	require.NoError(t, seen(t.Context(), conch, &in))
	declared := advise.Grid{1: 5 * time.Millisecond, 5: 9 * time.Millisecond}
	require.Equal(t, map[string]advise.Grid{"given": grid, "declared": declared, "single": declared}, in.Grids)
}

// Of a model whose callers gave up on six of ten requests nobody knows how many of these were bad.
func TestWhatIsSeenOfTheTraffic(t *testing.T) {
	for length, polls := range map[time.Duration]int{window - 1: 0, 3*window + 1: 3} {
		bubble.Test(t, func(t *testing.T) {
			recorded, asked := make(chan struct{}), 0
			time.AfterFunc(length, func() { close(recorded) })
			bad, atMost, err := fare(t.Context(), func(context.Context) ([]api.Model, error) {
				asked++
				return []api.Model{{Name: "idle"}, {Name: "late", Rate: 10, Goodput: 7.5, BadRate: .4, LateRate: .25}, {Name: "left", Rate: 10, Goodput: 4}}, nil
			}, recorded)
			require.NoError(t, err)
			require.Equal(t, polls, asked)
			if polls == 0 {
				require.Empty(t, bad)
				return
			}
			require.Equal(t, map[string]float64{"late": .25, "left": 0}, bad)
			require.InDeltaMapValues(t, map[string]float64{"late": .25, "left": .6}, atMost, 1e-9)
		})
	}
}
