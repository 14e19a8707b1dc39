// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package router

import (
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

// TestEveryFieldOfAModelCounts: two models are the same only if all of their fields are. A field that same does not know would never come into force.
func TestEveryFieldOfAModelCounts(t *testing.T) {
	values := map[reflect.Type]any{
		reflect.TypeFor[string]():                "another",
		reflect.TypeFor[bool]():                  true,
		reflect.TypeFor[int]():                   7,
		reflect.TypeFor[time.Duration]():         time.Hour,
		reflect.TypeFor[[]string]():              []string{"7"},
		reflect.TypeFor[map[string]string]():     map[string]string{"a": "b"},
		reflect.TypeFor[[]Place]():               []Place{{Partition: "p"}},
		reflect.TypeFor[*Membership]():           &Membership{Group: "g"},
		reflect.TypeFor[*tritonpb.ModelConfig](): &tritonpb.ModelConfig{Name: "another"},
	}
	of := reflect.TypeFor[Model]()
	for i := range of.NumField() {
		field := of.Field(i)
		a, b := &Model{}, &Model{}
		require.True(t, a.same(b))
		v := reflect.ValueOf(b).Elem().Field(i)
		switch value, known := values[field.Type]; {
		case known:
			v.Set(reflect.ValueOf(value))
		case field.Type.Kind() == reflect.Int32:
			v.SetInt(1)
		default:
			t.Fatalf("give this test a value of %v for %s", field.Type, field.Name)
		}
		require.False(t, a.same(b), field.Name)
	}
}
