// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package attached_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/apply/attached"
	"github.com/conch-serving/conch/sidecar/apply/driver"
)

// servers are what a test says they are.
type servers struct {
	states []driver.EndpointState
	wanted map[string]bool
}

func (s *servers) States(context.Context) ([]driver.EndpointState, error) { return s.states, nil }
func (s *servers) TakeOver(_ context.Context, want func(string) bool) []driver.Handover {
	for _, state := range s.states {
		for _, m := range state.Models {
			s.wanted[m.Name] = want(m.Name)
		}
	}
	return nil
}
func (s *servers) HandBack(context.Context, bool) []driver.Handover { return nil }

func state(gpu string, up bool, models ...driver.Served) driver.EndpointState {
	return driver.EndpointState{AttachEndpoint: driver.AttachEndpoint{GPU: gpu, Endpoint: driver.Endpoint{GRPC: gpu + ":8001"}}, Seen: true, Up: up, Models: models}
}

func served(name string, maxBatch int32, dims ...int64) driver.Served {
	return driver.Served{Name: name, Versions: []int64{1}, Config: &tritonpb.ModelConfig{
		Name: name, MaxBatchSize: maxBatch, Input: []*tritonpb.ModelInput{{Name: "IN", DataType: tritonpb.DataType_TYPE_FP32, Dims: dims}},
		SchedulingChoice: &tritonpb.ModelConfig_DynamicBatching{DynamicBatching: &tritonpb.ModelDynamicBatching{}},
	}}
}

// placed is what a catalogue says, as "gpu: model of batch".
func placed(c *attached.Catalogue) map[string]map[string]uint32 {
	all := map[string]map[string]uint32{}
	for _, p := range c.Partitions() {
		all[p.GPU()] = map[string]uint32{}
		for _, in := range p.GetInstances() {
			all[p.GPU()][in.GetModel()] = in.GetMaxBatch()
		}
	}
	return all
}

func TestCataloguePlacesModelsWhereTheyAre(t *testing.T) {
	ragged := served("odd", 4, 2)
	s := &servers{wanted: map[string]bool{}, states: []driver.EndpointState{
		state("one", true, served("both", 8, 1), served("odd", 4, 1)),
		state("two", true, served("both", 4, 1), served("only", 0, 1), ragged),
		{AttachEndpoint: driver.AttachEndpoint{GPU: "never", Endpoint: driver.Endpoint{GRPC: "never:8001"}}, Reason: "the server at never:8001 cannot be reached"},
	}}
	s.states[1].HTTP, s.states[1].Shut = "two:8000", []string{"HTTP"}
	c := attached.New("node", s, nil)
	first, err := c.Read(t.Context(), repo.Origin{})
	require.NoError(t, err)
	require.Equal(t, map[string]map[string]uint32{"one": {"both": 8, "odd": 4}, "two": {"both": 4, "only": 0}}, placed(c),
		"each with its server's own batch; another model by the same name is left out")
	require.Len(t, c.Remarks(), 3)
	require.Contains(t, c.Remarks()[0], "nothing answers at two:8000, the HTTP of the server at two:8001")
	require.Equal(t, "no requests go to never:8001 until it answers: the server at never:8001 cannot be reached", c.Remarks()[1])
	require.Contains(t, c.Remarks()[2], "odd at two:8001 has other tensors")
	require.Equal(t, []string{"both", "odd", "only"}, first.Diff.Added)
	require.Nil(t, first.Model("both").Config.GetDynamicBatching())

	again, err := c.Read(t.Context(), repo.Origin{})
	require.NoError(t, err)
	require.Same(t, first, again, "nothing has changed")

	c.TakeOver(t.Context())
	require.Equal(t, map[string]bool{"both": true, "odd": true, "only": false}, s.wanted, "conch batches what has a batch dimension")

	s.states[0].Models = s.states[0].Models[:1]
	s.states[1].Up = false
	next, err := c.Read(t.Context(), repo.Origin{})
	require.NoError(t, err)
	require.Equal(t, first.ID, next.Parent)
	require.Equal(t, []string{"odd"}, next.Diff.ChangedModels(), "what the server that is down says of it is all there is")
	require.Equal(t, map[string]map[string]uint32{"one": {"both": 8}, "two": {"both": 4, "only": 0, "odd": 4}}, placed(c))
}

func TestCatalogueKnowsWhatWasUnloaded(t *testing.T) {
	s := &servers{states: []driver.EndpointState{state("one", true, served("kept", 8, 1), served("taken", 4, 1))}}
	c := attached.New("node", s, nil)
	all := s.states[0].Models
	unloaded := func(models ...driver.Served) (names []string) {
		s.states[0].Models = models
		r, err := c.Read(t.Context(), repo.Origin{})
		require.NoError(t, err)
		for _, m := range r.Unloaded {
			names = append(names, m.Name)
		}
		return names
	}
	require.Empty(t, unloaded(all...))
	require.Equal(t, []string{"taken"}, unloaded(all[0]))
	require.Equal(t, []string{"taken"}, unloaded(all[0]), "nothing has changed")
	require.ElementsMatch(t, []string{"kept", "taken"}, unloaded())
	require.Empty(t, unloaded(all...), "they are loaded again")
}

func TestCatalogueOfNobody(t *testing.T) {
	s := &servers{states: []driver.EndpointState{{Reason: "the server at a:1 cannot be reached"}}}
	_, err := attached.New("node", s, nil).Read(t.Context(), repo.Origin{})
	require.True(t, errors.Is(err, attached.ErrNobody))
	require.ErrorContains(t, err, "a:1 cannot be reached")
}

// What batches a model without Conch is asked for long after Conch has taken it out.
func TestCatalogueRemembersTheTeamsBatching(t *testing.T) {
	batched, taken, alone := served("batched", 8, 1), served("taken", 8, 1), served("alone", 8, 1)
	batched.Config.GetDynamicBatching().MaxQueueDelayMicroseconds = 700
	taken.Original, taken.Config = taken.Config, &tritonpb.ModelConfig{Name: "taken", MaxBatchSize: 8, Input: taken.Config.GetInput()}
	taken.Original.GetDynamicBatching().MaxQueueDelayMicroseconds = 300
	alone.Config.SchedulingChoice = nil
	c := attached.New("node", &servers{states: []driver.EndpointState{state("one", true, batched, taken, alone)}}, nil)
	require.Nil(t, c.Batching("batched"), "nothing was read yet")
	_, err := c.Read(t.Context(), repo.Origin{})
	require.NoError(t, err)
	require.EqualValues(t, 700, c.Batching("batched").GetMaxQueueDelayMicroseconds())
	require.EqualValues(t, 300, c.Batching("taken").GetMaxQueueDelayMicroseconds())
	require.Nil(t, c.Batching("alone"))
	require.Nil(t, c.Batching("nobody"))
}
