// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package handon

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"strings"
	"time"

	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/ingress/gate"
)

// refusalBytes is the most of a refusal that is read to know it.
const refusalBytes = 4 << 10

func (f *Front) newHTTP() http.Handler {
	proxy := &httputil.ReverseProxy{
		Transport: f, FlushInterval: -1, ErrorLog: f.server(nil).ErrorLog,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.Host, r.Out.URL.RawQuery = "http", r.In.Host, r.In.URL.RawQuery
			r.Out.Header.Set(markHandedOn, f.o.Name)
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) { refuse(w, err) },
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.counts.underWay.Add(1)
		defer f.counts.underWay.Add(-1)
		if f.leaving.Load() {
			w.Header().Set("Connection", "close")
		}
		if by := r.Header.Get(markHandedOn); by != "" {
			w.Header().Set(markNotOwner, f.o.Name)
			refuse(w, &failure{SecondHop, errors.New(f.secondHop(by))})
			f.count(SecondHop)
			return
		}
		conn := gate.ConnOf(r.Context())
		admitted, err := conn.Admit(nil)
		if err == nil {
			defer admitted.End()
			var held int
			if held, err = f.whole(conn, w, r); err == nil {
				defer conn.Release(held)
			}
		}
		if err != nil {
			f.count(Refused)
			refuse(w, err)
			return
		}
		proxy.ServeHTTP(w, r)
	})
}

func (f *Front) count(o Outcome) { f.counts.requests.WithLabelValues("http", string(o)).Inc() }

// whole reads a request's body, so that it can be sent again, and says how many bytes are counted into the gate.
func (f *Front) whole(conn *gate.Conn, w http.ResponseWriter, r *http.Request) (int, error) {
	control := http.NewResponseController(w)
	body := held{conn: conn, stalls: func() error { return control.SetReadDeadline(time.Now().Add(f.o.Stall)) }}
	if err := body.stalls(); err != nil {
		return 0, err
	}
	if _, err := io.Copy(&body, http.MaxBytesReader(w, r.Body, int64(f.o.MessageBytes))); err != nil {
		conn.Release(body.Len())
		return 0, err
	}
	if err := control.SetReadDeadline(time.Time{}); err != nil { // that the client has left is read for as long as it waits
		conn.Release(body.Len())
		return 0, err
	}
	r.Body, r.ContentLength, r.TransferEncoding = io.NopCloser(bytes.NewReader(body.Bytes())), int64(body.Len()), nil
	r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body.Bytes())), nil }
	if body.Len() == 0 {
		r.Body = http.NoBody
	}
	return body.Len(), nil
}

// held is what was read of a body, counted into the gate as it comes.
type held struct {
	bytes.Buffer
	conn *gate.Conn
	// stalls has the read fail once nothing has come for Options.Stall from now on.
	stalls func() error
}

// Write implements io.Writer.
func (h *held) Write(p []byte) (int, error) {
	if err := h.stalls(); err != nil {
		return 0, err
	}
	if err := h.conn.Hold(len(p)); err != nil {
		return 0, err
	}
	return h.Buffer.Write(p)
}

// ReadFrom hides that of the buffer, which counts nothing.
func (h *held) ReadFrom(r io.Reader) (int64, error) {
	return io.Copy(struct{ io.Writer }{h}, r)
}

// failure is a request that no owner has answered.
type failure struct {
	Outcome
	error
}

// refuse answers in the form of Triton's errors.
func refuse(w http.ResponseWriter, err error) {
	code := http.StatusServiceUnavailable
	if large := (*http.MaxBytesError)(nil); errors.As(err, &large) {
		code = http.StatusRequestEntityTooLarge
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(map[string]string{"error": err.Error()}) // who asked has gone
}

// RoundTrip implements http.RoundTripper: it hands a request on until an owner has answered it.
func (f *Front) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, outcome, err := f.roundTrip(r)
	f.count(outcome)
	if err != nil {
		return nil, &failure{outcome, err}
	}
	return answer, nil
}

func (f *Front) roundTrip(r *http.Request) (*http.Response, Outcome, error) {
	w := wait{ctx: r.Context(), until: time.Now().Add(f.o.Patience)}
	if strings.HasPrefix(r.URL.Path, "/v2/health/") {
		w.until = time.Now().Add(healthPatience)
	}
	var lost *reign // may have executed it, and is sent it again only if it still serves
	for sent := false; ; {
		now, changed := f.owner.look()
		if now != nil && now.HTTP != "" && (lost != now || f.serves(r.Context(), now)) {
			if sent {
				f.counts.again.Inc()
			}
			sent = true
			answer, err := f.send(r, now)
			switch dial := (*net.OpError)(nil); {
			case err == nil:
				f.owner.heard()
				return answer, Answered, nil
			case r.Context().Err() != nil:
				return nil, Cancelled, r.Context().Err()
			case errors.Is(err, errNotTaken) || errors.As(err, &dial) && dial.Op == "dial":
			case lost != nil || maybeInSequence(r):
				return nil, Lost, errors.New(unknown(now.Name))
			default:
				lost = now
			}
		}
		if !w.more(changed) {
			if err := r.Context().Err(); err != nil {
				return nil, Cancelled, err
			}
			return nil, Unavailable, errors.New(f.nobody())
		}
	}
}

// maybeInSequence says whether a request may belong to a sequence: it says so, or its body is compressed and says it or not.
func maybeInSequence(r *http.Request) bool {
	encoding := r.Header.Get("Content-Encoding")
	return encoding != "" && encoding != "identity" || bytes.Contains(bodyOf(r), []byte("sequence_"))
}

// bodyOf is the body of a request that whole has read.
func bodyOf(r *http.Request) []byte {
	if r.GetBody == nil {
		return nil
	}
	again, err := r.GetBody()
	if err != nil {
		return nil
	}
	all, _ := io.ReadAll(again) // it is in memory
	return all
}

// errNotTaken: the replica has not begun to execute the request.
var errNotTaken = errors.New("the replica does not take the request")

// send sends a request to an owner. The answer's body ends with the owner's reign.
func (f *Front) send(r *http.Request, now *reign) (*http.Response, error) {
	ctx, done := now.during(r.Context())
	out := r.Clone(ctx)
	out.URL.Host = now.HTTP
	if r.GetBody != nil {
		out.Body, _ = r.GetBody() // it is in memory
	}
	if r.Header["Idempotency-Key"] != nil || r.Header["X-Idempotency-Key"] != nil {
		out.GetBody = nil // else net/http itself sends it again, as often as connections break
	}
	answer, err := now.transport.RoundTrip(out)
	if err != nil {
		done()
		return nil, err
	}
	answer.Body = &ending{answer.Body, done}
	if answer.StatusCode != http.StatusServiceUnavailable {
		return answer, nil
	}
	refusal, err := io.ReadAll(io.LimitReader(answer.Body, refusalBytes))
	if err == nil && (answer.Header.Get(markNotOwner) != "" || bytes.Contains(refusal, []byte(batch.Exiting)) || bytes.Contains(refusal, []byte(batch.NotReady))) {
		_ = answer.Body.Close()
		return nil, errNotTaken
	}
	answer.Body = &ending{struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(refusal), answer.Body), answer.Body}, func() {}}
	return answer, nil
}

// ending calls a function when a body is closed.
type ending struct {
	io.ReadCloser
	done func()
}

// Close implements io.Closer.
func (e *ending) Close() error {
	defer e.done()
	return e.ReadCloser.Close()
}

// servesHTTP is serves where the gRPC door is off.
func (f *Front) servesHTTP(ctx context.Context, now *reign) bool {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+now.HTTP+"/v2/health/live", nil)
	if err != nil {
		return false
	}
	r.Header.Set(markHandedOn, f.o.Name)
	answer, err := now.transport.RoundTrip(r)
	if err != nil {
		return false
	}
	_ = answer.Body.Close()
	return answer.StatusCode == http.StatusOK
}
