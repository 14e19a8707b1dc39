// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch"
	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/forward"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// spoilt are answers that no Triton gives.
var spoilt = map[string]func(*tritonpb.ModelInferRequest, *tritonpb.ModelInferResponse){
	"no outputs": func(_ *tritonpb.ModelInferRequest, a *tritonpb.ModelInferResponse) {
		a.Outputs, a.RawOutputContents = nil, nil
	},
	"another output": func(_ *tritonpb.ModelInferRequest, a *tritonpb.ModelInferResponse) { a.Outputs[0].Name = "OTHER" },
	"an output twice": func(_ *tritonpb.ModelInferRequest, a *tritonpb.ModelInferResponse) {
		a.Outputs, a.RawOutputContents = append(a.Outputs, a.Outputs[0]), append(a.RawOutputContents, a.RawOutputContents[0])
	},
	"no data":    func(_ *tritonpb.ModelInferRequest, a *tritonpb.ModelInferResponse) { a.RawOutputContents = nil },
	"empty data": func(_ *tritonpb.ModelInferRequest, a *tritonpb.ModelInferResponse) { a.RawOutputContents[0] = nil },
	"half the data": func(_ *tritonpb.ModelInferRequest, a *tritonpb.ModelInferResponse) {
		a.RawOutputContents[0] = a.RawOutputContents[0][:len(a.RawOutputContents[0])/2]
	},
	"data of no output": func(_ *tritonpb.ModelInferRequest, a *tritonpb.ModelInferResponse) {
		a.RawOutputContents = append(a.RawOutputContents, a.RawOutputContents[0])
	},
	"a row too many": func(_ *tritonpb.ModelInferRequest, a *tritonpb.ModelInferResponse) {
		a.Outputs[0].Shape = []int64{a.Outputs[0].Shape[0] + 1, 4}
	},
	"a row too many, filled": func(_ *tritonpb.ModelInferRequest, a *tritonpb.ModelInferResponse) {
		a.Outputs[0].Shape = []int64{a.Outputs[0].Shape[0] + 1, 4}
		a.RawOutputContents[0] = append(bytes.Clone(a.RawOutputContents[0]), a.RawOutputContents[0][:16]...)
	},
	"nine rows": func(_ *tritonpb.ModelInferRequest, a *tritonpb.ModelInferResponse) {
		a.Outputs[0].Shape = []int64{9, 4}
		a.RawOutputContents[0] = bytes.Repeat(a.RawOutputContents[0][:16], 9)
	},
	"no rows": func(_ *tritonpb.ModelInferRequest, a *tritonpb.ModelInferResponse) {
		a.Outputs[0].Shape[0] = 0
		a.RawOutputContents[0] = nil
	},
	"no shape": func(_ *tritonpb.ModelInferRequest, a *tritonpb.ModelInferResponse) { a.Outputs[0].Shape = nil },
	"one row of all": func(_ *tritonpb.ModelInferRequest, a *tritonpb.ModelInferResponse) {
		a.Outputs[0].Shape = []int64{1, 4 * a.Outputs[0].Shape[0]}
	},
	"a negative dimension": func(_ *tritonpb.ModelInferRequest, a *tritonpb.ModelInferResponse) {
		a.Outputs[0].Shape = []int64{a.Outputs[0].Shape[0], -4}
	},
	"negative dimensions": func(_ *tritonpb.ModelInferRequest, a *tritonpb.ModelInferResponse) {
		a.Outputs[0].Shape = []int64{-1, -4}
	},
	"a size that overflows": func(_ *tritonpb.ModelInferRequest, a *tritonpb.ModelInferResponse) {
		a.Outputs[0].Shape = []int64{math.MaxInt64/4 + 1, 1}
		a.RawOutputContents[0] = nil
	},
	"the same with rows": func(_ *tritonpb.ModelInferRequest, a *tritonpb.ModelInferResponse) {
		a.Outputs[0].Shape = []int64{a.Outputs[0].Shape[0], 1 << 62}
		a.RawOutputContents[0] = nil
	},
	"the smallest dimension": func(_ *tritonpb.ModelInferRequest, a *tritonpb.ModelInferResponse) {
		a.Outputs[0].Shape = []int64{math.MinInt64, math.MinInt64}
	},
	"another datatype":      func(_ *tritonpb.ModelInferRequest, a *tritonpb.ModelInferResponse) { a.Outputs[0].Datatype = "INT64" },
	"no datatype":           func(_ *tritonpb.ModelInferRequest, a *tritonpb.ModelInferResponse) { a.Outputs[0].Datatype = "" },
	"a datatype of its own": func(_ *tritonpb.ModelInferRequest, a *tritonpb.ModelInferResponse) { a.Outputs[0].Datatype = "COMPLEX" },
	"bytes":                 func(_ *tritonpb.ModelInferRequest, a *tritonpb.ModelInferResponse) { a.Outputs[0].Datatype = "BYTES" },
	"in shared memory": func(_ *tritonpb.ModelInferRequest, a *tritonpb.ModelInferResponse) {
		a.Outputs[0].Parameters = map[string]*tritonpb.InferParameter{"shared_memory_region": {ParameterChoice: &tritonpb.InferParameter_StringParam{StringParam: "r"}}}
	},
	"typed contents": func(_ *tritonpb.ModelInferRequest, a *tritonpb.ModelInferResponse) {
		a.RawOutputContents, a.Outputs[0].Contents = nil, &tritonpb.InferTensorContents{Fp32Contents: []float32{1}}
	},
	"typed contents of another datatype": func(_ *tritonpb.ModelInferRequest, a *tritonpb.ModelInferResponse) {
		a.RawOutputContents, a.Outputs[0].Contents = nil, &tritonpb.InferTensorContents{BytesContents: [][]byte{{1}}}
	},
	"a parameter without a value": func(_ *tritonpb.ModelInferRequest, a *tritonpb.ModelInferResponse) {
		a.Parameters = map[string]*tritonpb.InferParameter{"own": {}}
	},
	"another model and id": func(_ *tritonpb.ModelInferRequest, a *tritonpb.ModelInferResponse) {
		a.ModelName, a.ModelVersion, a.Id = "x", "7", "8"
	},
}

// foreign returns what of an answer is not of the request whose tensor holds nothing but seed.
func foreign(a *batch.Response, seed uint32) error {
	own := binary.LittleEndian.AppendUint32(nil, seed)
	for i := range a.Outputs {
		data := a.Outputs[i].Data.Materialize()
		for at := 0; at+4 <= len(data); at += 4 {
			if !bytes.Equal(data[at:at+4], own) && a.Outputs[i].Contents == nil && binary.LittleEndian.Uint32(data[at:]) != math.Float32bits(1) {
				return fmt.Errorf("an output of %v has %x", a.Outputs[i].Shape, data[at:at+4])
			}
		}
	}
	return nil
}

// TestHostileAnswers: whatever servers answer with, every request has one answer, without a byte of another request, nothing is held in the end, and Conch has
// no fault.
func TestHostileAnswers(t *testing.T) {
	for name, spoils := range spoilt {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log bytes.Buffer
			var mu sync.Mutex
			answers := new(countedPool)
			p := newTriton(t)
			var n atomic.Int64
			p.spoils = func(r *tritonpb.ModelInferRequest, a *tritonpb.ModelInferResponse) {
				if n.Add(1)%3 != 0 {
					spoils(r, a)
				}
			}
			p.takes = time.Millisecond
			routes := ensembleTable(1, func(tb *router.Table) {
				tb.Models["split"] = ensembleOf("split", [3]string{"m", "IN", "OUT"}, [3]string{"n", "IN", "OTHER"}, [3]string{"n", "OTHER", "THIRD"})
				tb.Models["split"].Config.Output = append(tb.Models["split"].Config.Output, &tritonpb.ModelOutput{Name: "THIRD", DataType: tritonpb.DataType_TYPE_FP32, Dims: []int64{4}})
				tb.Models["split"].Places = tb.Models["m"].Places
			}, p)
			d, seen := newDispatcher(t, dispatch.Options{Forward: forward.Options{Pool: answers}, Logger: slog.New(slog.NewTextHandler(locked{&mu, &log}, nil))}, routes)
			_, address := fronts(t, d, routes)
			models := []string{"m", "n", "e", "split"}
			atOnce(8, func(g int) error {
				client := &http.Client{Transport: &http.Transport{}}
				defer client.CloseIdleConnections()
				for i := range 12 {
					seed, rows, model := uint32(g<<8|i)<<8|0x01, 1+rand.IntN(4), models[rand.IntN(len(models))]
					if i%3 == 2 {
						code, text := postTo(t, client, "http://"+address+"/v2/models/"+model+"/infer", asJSON)
						if code != 200 && !strings.Contains(text, `"error"`) {
							t.Error(code, text)
						}
						continue
					}
					resp, err := d.Infer(t.Context(), request(t, fmt.Sprint("id", seed), rows, seed, toModel(model)))
					if err != nil {
						continue
					}
					if err := foreign(resp, seed); err != nil {
						t.Error(model, err)
					}
					resp.Free()
				}
				return nil
			})
			require.NoError(t, d.Drain(t.Context()))
			require.Eventually(t, func() bool {
				requests, bytes := d.UnderWay()
				leases := 0
				for _, p := range d.Partitions() {
					leases += p.Leases
				}
				return requests == 0 && bytes == 0 && leases == 0 && seen.settled()
			}, 30*time.Second, time.Millisecond)
			for _, name := range models {
				c, _ := d.Counts(name)
				require.Zero(t, c.UnderWay, name)
			}
			require.NoError(t, d.Close())
			require.Zero(t, answers.out.Load(), "buffers of answers")
			mu.Lock()
			defer mu.Unlock()
			require.NotContains(t, log.String(), "fault of Conch's")
			require.NotContains(t, log.String(), "panic")
		})
	}
}

// locked is a writer for several goroutines.
type locked struct {
	mu *sync.Mutex
	w  io.Writer
}

func (l locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}
