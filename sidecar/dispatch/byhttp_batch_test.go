// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// wide gives a model rows of any length.
func wide(m *router.Model) {
	m.Config.Input = []*tritonpb.ModelInput{{Name: "IN", DataType: tritonpb.DataType_TYPE_FP32, Dims: []int64{-1}}}
	m.Config.Output = []*tritonpb.ModelOutput{{Name: "OUT", DataType: tritonpb.DataType_TYPE_FP32, Dims: []int64{-1}}}
}

// rowOf is a binary row of 40 KB that is the caller's own.
func rowOf(caller byte) []byte { return bytes.Repeat([]byte{caller, 1, 2, 3}, 10_000) }

// postRow asks for inference with a row in binary, and returns the status and what came back.
func (p *ported) postRow(t *testing.T, row []byte, parameters string) (code int, head string, data []byte) {
	document := fmt.Sprintf(`{"inputs":[{"name":"IN","datatype":"FP32","shape":[1,%d],"parameters":{"binary_data_size":%d}}],"parameters":{"binary_data_output":true%s}}`, len(row)/4, len(row), parameters)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+p.address+"/v2/models/m/infer", bytes.NewReader(append([]byte(document), row...)))
	if err != nil {
		t.Error(err)
		return 0, "", nil
	}
	r.Header.Set("Inference-Header-Content-Length", strconv.Itoa(len(document)))
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Error(err)
		return 0, "", nil
	}
	defer func() { _ = answer.Body.Close() }()
	all, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Error(err)
	}
	n, err := strconv.Atoi(answer.Header.Get("Inference-Header-Content-Length"))
	if err != nil {
		return answer.StatusCode, string(all), nil
	}
	return answer.StatusCode, string(all[:n]), all[n:]
}

// echo answers a request in binary with its input as its output, as Triton's port does.
func echo(w http.ResponseWriter, body []byte, length, more string) {
	n, _ := strconv.Atoi(length)
	var asked struct {
		Inputs []struct {
			Shape []int64 `json:"shape"`
		} `json:"inputs"`
	}
	if json.Unmarshal(body[:n], &asked) != nil || len(asked.Inputs) != 1 {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	shape, _ := json.Marshal(asked.Inputs[0].Shape)
	head := fmt.Sprintf(`{"model_name":"m","model_version":"1"%s,"outputs":[{"name":"OUT","datatype":"FP32","shape":%s,"parameters":{"binary_data_size":%d}}]}`, more, shape, len(body)-n)
	w.Header().Set("Inference-Header-Content-Length", strconv.Itoa(len(head)))
	w.Header().Set("Content-Length", strconv.Itoa(len(head)+len(body)-n))
	_, _ = io.WriteString(w, head)
	_, _ = w.Write(body[n:])
}

// crowd has n callers wait while a request of another runs, and returns what each got. Alike is what the rows' requests carry besides.
func (p *ported) crowd(t *testing.T, n int, does func(w http.ResponseWriter, body []byte, length string), alike string) (codes []int, heads []string, rows [][]byte) {
	began, hold := make(chan struct{}), make(chan struct{})
	first := sync.OnceFunc(func() { close(began) })
	at := p.ports[0]
	at.do(func(w http.ResponseWriter, r *http.Request) {
		at.mu.Lock()
		body := at.body // of this request: the port is asked by one connection at a time here
		at.mu.Unlock()
		length := r.Header.Get("Inference-Header-Content-Length")
		if length == "" {
			first()
			<-hold
			_, _ = io.WriteString(w, jsonAnswer)
			return
		}
		does(w, body, length)
	})
	codes, heads, rows = make([]int, n), make([]string, n), make([][]byte, n)
	var running sync.WaitGroup
	running.Go(func() { _, _ = p.post(t, asJSON) })
	<-began
	for i := range n {
		running.Go(func() { codes[i], heads[i], rows[i] = p.postRow(t, rowOf(byte('a'+i)), alike) })
	}
	require.Eventually(t, func() bool { c, _ := p.d.Counts("m"); return c.Waiting == n }, 30*time.Second, time.Millisecond)
	close(hold)
	running.Wait()
	return codes, heads, rows
}

// TestALargeBatchGoesByHTTP: requests that came over HTTP and share an execution are sent to the server's HTTP port together if they are large, and each
// gets its own rows.
func TestALargeBatchGoesByHTTP(t *testing.T) {
	p := newPorted(t, 1, dispatch.Options{}, wide)
	p.warm(t)
	codes, heads, rows := p.crowd(t, 3, func(w http.ResponseWriter, body []byte, length string) {
		echo(w, body, length, `,"parameters":{"z":"text","a":7,"f":0.5,"b":true}`)
	}, "")
	for i := range codes {
		require.Equal(t, 200, codes[i], heads[i])
		require.Equal(t, `{"model_name":"m","model_version":"1","parameters":{"z":"text","a":7,"f":0.5,"b":true},"outputs":[{"name":"OUT","datatype":"FP32","shape":[1,10000],"parameters":{"binary_data_size":40000}}]}`, heads[i])
		require.True(t, bytes.Equal(rowOf(byte('a'+i)), rows[i]), "caller %d got another's row", i)
	}
	require.Zero(t, p.byGRPC())
	require.Equal(t, 2, p.byHTTP())
	require.Equal(t, `{"inputs":[{"name":"IN","datatype":"FP32","shape":[3,10000],"parameters":{"binary_data_size":120000}}],"parameters":{"binary_data_output":true}}`, string(p.ports[0].body[:len(p.ports[0].body)-120_000]))
}

// TestWhatABatchByHTTPDoesNotSay goes over gRPC, as a batch.
func TestWhatABatchByHTTPDoesNotSay(t *testing.T) {
	p := newPorted(t, 1, dispatch.Options{}, wide)
	p.warm(t)
	before := len(p.parts[0].executions())
	codes, heads, _ := p.crowd(t, 3, func(w http.ResponseWriter, body []byte, length string) { echo(w, body, length, "") }, `,"own":"x"`)
	for i := range codes {
		require.Equal(t, 200, codes[i], heads[i])
	}
	require.Equal(t, 1, p.byHTTP())
	require.Equal(t, []int{3}, p.parts[0].executions()[before:])
}

// TestABatchByHTTPThatFails: its requests run apart, and an answer that cannot be read, or divided, is no answer of anyone's.
func TestABatchByHTTPThatFails(t *testing.T) {
	for name, answer := range map[string]string{
		"no outputs of the size": `{"model_name":"m","model_version":"1","outputs":[{"name":"OUT","datatype":"FP32","shape":[3,10000],"parameters":{"binary_data_size":8}}]}`,
		"in JSON":                `{"model_name":"m","model_version":"1","outputs":[{"name":"OUT","datatype":"FP32","shape":[3,1],"data":[1,2,3]}]}`,
		"more than there is":     `{"model_name":"m","model_version":"1","outputs":[{"name":"OUT","datatype":"FP32","shape":[3,10000],"parameters":{"binary_data_size":120001}}]}`,
		"less than there is":     `{"model_name":"m","model_version":"1","outputs":[]}`,
		"negative":               `{"model_name":"m","model_version":"1","outputs":[{"name":"OUT","datatype":"FP32","shape":[3,10000],"parameters":{"binary_data_size":-1}}]}`,
		"a parameter of a kind":  `{"model_name":"m","model_version":"1","parameters":{"x":[1]},"outputs":[{"name":"OUT","datatype":"FP32","shape":[3,10000],"parameters":{"binary_data_size":120000}}]}`,
		"an error":               "",
	} {
		t.Run(name, func(t *testing.T) {
			p := newPorted(t, 1, dispatch.Options{}, wide)
			p.warm(t)
			codes, heads, rows := p.crowd(t, 3, func(w http.ResponseWriter, body []byte, length string) {
				switch {
				case !strings.Contains(string(body[:200]), "[3,"):
					echo(w, body, length, "")
				case answer == "":
					w.WriteHeader(http.StatusInternalServerError)
					_, _ = io.WriteString(w, `{"error":"of the model"}`)
				default:
					w.Header().Set("Inference-Header-Content-Length", strconv.Itoa(len(answer)))
					_, _ = io.WriteString(w, answer+string(make([]byte, 120_000)))
				}
			}, "")
			for i := range codes {
				require.Equal(t, 200, codes[i], heads[i])
				require.True(t, bytes.Equal(rowOf(byte('a'+i)), rows[i]), "caller %d got another's row", i)
			}
		})
	}
}
