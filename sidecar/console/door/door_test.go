// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package door_test

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/console/door"
)

// world is a door in front of an echo, at a time that the test says.
type world struct {
	door *door.Door
	now  time.Time
	// got are the requests that came in.
	got []*http.Request
}

func newWorld(change func(*door.Options)) *world {
	w := &world{now: time.Unix(1_700_000_000, 0)}
	o := door.Options{
		Inside: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { w.got = append(w.got, r) }), Home: "/console/", Hosts: door.Loopback(),
		Cookie: "conch-ui", Now: func() time.Time { return w.now }, Logger: slog.New(slog.DiscardHandler),
	}
	if change != nil {
		change(&o)
	}
	w.door = door.New(o)
	return w
}

func (w *world) ask(method, path string, edit func(*http.Request)) *http.Response {
	r := httptest.NewRequest(method, "http://127.0.0.1:8003"+path, nil)
	if edit != nil {
		edit(r)
	}
	out := httptest.NewRecorder()
	w.door.ServeHTTP(out, r)
	return out.Result()
}

// cookie is what the browser that opens a link gets.
func (w *world) cookie(t *testing.T) *http.Cookie {
	t.Helper()
	answer := w.ask(http.MethodGet, w.door.Link(time.Minute), nil)
	require.Equal(t, http.StatusOK, answer.StatusCode)
	require.Len(t, answer.Cookies(), 1)
	return answer.Cookies()[0]
}

func with(c *http.Cookie) func(*http.Request) { return func(r *http.Request) { r.AddCookie(c) } }

func TestALinkLetsOneBrowserInOnce(t *testing.T) {
	w := newWorld(nil)
	require.Equal(t, http.StatusUnauthorized, w.ask(http.MethodGet, "/v1/models", nil).StatusCode)
	link := w.door.Link(time.Minute)
	answer := w.ask(http.MethodGet, link, nil)
	require.Equal(t, http.StatusOK, answer.StatusCode, "a page, not a redirect, which would come without the cookie")
	c := answer.Cookies()[0]
	require.True(t, c.HttpOnly)
	require.Equal(t, http.SameSiteStrictMode, c.SameSite)
	require.Equal(t, http.StatusUnauthorized, w.ask(http.MethodGet, link, nil).StatusCode, "once")
	require.Equal(t, http.StatusOK, w.ask(http.MethodGet, "/v1/models", with(c)).StatusCode)
	require.Equal(t, "/console/", w.ask(http.MethodGet, "/", with(c)).Header.Get("Location"))
	require.Empty(t, w.got[0].Header.Get("Cookie"), "the cookie stays at the door")
	wrong := &http.Cookie{Name: c.Name, Value: c.Value[:len(c.Value)-1]}
	require.Equal(t, http.StatusUnauthorized, w.ask(http.MethodGet, "/v1/models", with(wrong)).StatusCode)

	w.now = w.now.Add(13 * time.Hour)
	require.Equal(t, http.StatusUnauthorized, w.ask(http.MethodGet, "/v1/models", with(c)).StatusCode, "a session ends")
}

func TestAnOldLinkLetsNobodyIn(t *testing.T) {
	w := newWorld(nil)
	link := w.door.Link(time.Minute)
	w.now = w.now.Add(61 * time.Second)
	require.Equal(t, http.StatusUnauthorized, w.ask(http.MethodGet, link, nil).StatusCode)
	for _, key := range []string{"", "?key=", "?key=x", "?key=" + strings.Repeat("k", 10_000)} {
		require.Equal(t, http.StatusUnauthorized, w.ask(http.MethodGet, "/open"+key, nil).StatusCode)
	}
	first := w.door.Link(time.Minute)
	w.now = w.now.Add(time.Second)
	for range 200 {
		w.door.Link(time.Minute)
	}
	require.Equal(t, http.StatusUnauthorized, w.ask(http.MethodGet, first, nil).StatusCode, "links are bounded, and the oldest are forgotten")
}

func TestOtherNamesReachNothing(t *testing.T) {
	w := newWorld(nil)
	c := w.cookie(t)
	for host, status := range map[string]int{
		"127.0.0.1:8003": 200, "localhost:1": 200, "LOCALHOST": 200, "localhost.": 200, "[::1]:8003": 200,
		"evil.example:8003": 421, "127.0.0.1.evil.example": 421, "localhost.evil.example": 421, "": 421, "10.0.0.1": 421, "127.0.0.1@evil.example": 421,
	} {
		answer := w.ask(http.MethodGet, "/v1/models", func(r *http.Request) { r.AddCookie(c); r.Host = host })
		require.Equal(t, status, answer.StatusCode, host)
	}
	link := w.door.Link(time.Minute)
	require.Equal(t, 421, w.ask(http.MethodGet, link, func(r *http.Request) { r.Host = "evil.example" }).StatusCode)
	require.Equal(t, 200, w.ask(http.MethodGet, link, nil).StatusCode, "and the link is not used up")
}

func TestPagesOfOtherOriginsReachNothing(t *testing.T) {
	w := newWorld(func(o *door.Options) { o.AllowChanges = true })
	c := w.cookie(t)
	for _, test := range []struct {
		method string
		header map[string]string
		status int
	}{
		{http.MethodPost, map[string]string{"Sec-Fetch-Site": "same-origin"}, 200},
		{http.MethodPost, map[string]string{"Sec-Fetch-Site": "none"}, 200},
		{http.MethodPost, map[string]string{"Sec-Fetch-Site": "cross-site"}, 403},
		{http.MethodPost, map[string]string{"Sec-Fetch-Site": "same-site"}, 403},
		{http.MethodPost, map[string]string{"Origin": "http://evil.example"}, 403},
		{http.MethodPost, map[string]string{"Origin": "http://127.0.0.1:9999"}, 403},
		{http.MethodPost, map[string]string{"Origin": "null"}, 403},
		{http.MethodPost, map[string]string{"Origin": "http://127.0.0.1:8003"}, 200},
		{http.MethodPut, map[string]string{"Sec-Fetch-Site": "cross-site"}, 403},
		{http.MethodDelete, map[string]string{"Sec-Fetch-Site": "cross-site"}, 403},
		{http.MethodPatch, map[string]string{"Origin": "http://evil.example"}, 403},
		{http.MethodGet, map[string]string{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, 403},
		{http.MethodGet, map[string]string{"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"}, 403},
		{http.MethodGet, map[string]string{"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"}, 200},
	} {
		answer := w.ask(test.method, "/v1/plan/apply", func(r *http.Request) {
			r.AddCookie(c)
			for k, v := range test.header {
				r.Header.Set(k, v)
			}
		})
		require.Equal(t, test.status, answer.StatusCode, "%s %v", test.method, test.header)
	}
}

func TestADoorThatTakesNoOrdersSaysSoInside(t *testing.T) {
	for _, changes := range []bool{false, true} {
		w := newWorld(func(o *door.Options) { o.AllowChanges = changes })
		c := w.cookie(t)
		w.ask(http.MethodPost, "/v1/plan/apply", func(r *http.Request) { r.AddCookie(c); r.Header.Set(door.Look, "") })
		require.Len(t, w.got, 1)
		require.Equal(t, !changes, w.got[0].Header.Get(door.Look) != "")
	}
}

func TestSignInWithAToken(t *testing.T) {
	const token = "0123456789abcdef"
	var broken error
	w := newWorld(func(o *door.Options) {
		o.Token = func(shown string) (bool, error) { return shown == token, broken }
		o.Secure = true
	})
	page := w.ask(http.MethodGet, "/console/", func(r *http.Request) { r.Header.Set("Accept", "text/html") })
	require.Equal(t, http.StatusUnauthorized, page.StatusCode)
	require.Contains(t, page.Header.Get("Content-Security-Policy"), "default-src 'none'")
	from := "192.0.2.1:1234"
	show := func(token string) *http.Response {
		r := httptest.NewRequest(http.MethodPost, "https://127.0.0.1/sign-in", strings.NewReader(url.Values{"token": {token}}.Encode()))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.RemoteAddr = from
		out := httptest.NewRecorder()
		w.door.ServeHTTP(out, r)
		return out.Result()
	}
	require.Equal(t, http.StatusUnauthorized, show("wrong").StatusCode)
	require.Equal(t, http.StatusUnauthorized, show(token).StatusCode, "nobody tries many in a row")
	from = "192.0.2.1:5678"
	require.Equal(t, http.StatusUnauthorized, show(token).StatusCode, "nor by other connections")
	from = "192.0.2.2:1234"
	require.Equal(t, http.StatusSeeOther, show(token).StatusCode, "whoever tries locks nobody else out")
	from = "[2001:db8::1]:1234"
	require.Equal(t, http.StatusUnauthorized, show("wrong").StatusCode)
	from = "[2001:db8::2]:1234"
	require.Equal(t, http.StatusUnauthorized, show(token).StatusCode, "one machine has all addresses of its network")
	w.now = w.now.Add(time.Second)
	answer := show(token)
	require.Equal(t, http.StatusSeeOther, answer.StatusCode)
	c := answer.Cookies()[0]
	require.True(t, c.Secure)
	require.Equal(t, http.StatusOK, w.ask(http.MethodGet, "/v1/models", with(c)).StatusCode)
	broken = errors.New("unreadable")
	require.Equal(t, http.StatusServiceUnavailable, show(token).StatusCode)
}

func TestClientCertificates(t *testing.T) {
	w := newWorld(func(o *door.Options) { o.Certificates = true })
	require.Equal(t, http.StatusUnauthorized, w.ask(http.MethodGet, "/v1/models", nil).StatusCode)
	require.Equal(t, http.StatusUnauthorized, w.ask(http.MethodGet, w.door.Link(time.Minute), nil).StatusCode, "no link opens this door")
	answer := w.ask(http.MethodGet, "/v1/models", func(r *http.Request) {
		r.TLS = &tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{{Subject: pkix.Name{CommonName: "ada"}}}}}
	})
	require.Equal(t, http.StatusOK, answer.StatusCode)
	require.Equal(t, "ada", door.UserOf(w.got[0].Context()).Name)
}

func TestRefusalsAreReadByPeopleAndPrograms(t *testing.T) {
	w := newWorld(nil)
	page := w.ask(http.MethodGet, "/console/", func(r *http.Request) {
		r.Host = `<script>alert(1)</script>`
		r.Header.Set("Accept", "text/html")
	})
	text := make([]byte, 1<<16)
	n, _ := page.Body.Read(text)
	require.NotContains(t, string(text[:n]), "<script>")
	require.Contains(t, string(text[:n]), "&lt;script&gt;")
	require.Equal(t, "application/json", w.ask(http.MethodGet, "/v1/models", nil).Header.Get("Content-Type"))
}

// TestAPersonWithoutALinkGetsAPage that says where a link comes from, whatever the browser calls what it takes; a program gets JSON.
func TestAPersonWithoutALinkGetsAPage(t *testing.T) {
	w := newWorld(nil)
	for _, c := range []struct {
		path, accept string
		page         bool
	}{
		{"/", "text/html,*/*;q=0.8", true}, {"/console/", "*/*", true}, {"/console/", "", true}, {"/open?key=old", "", true},
		{"/console/", "application/json", false}, {"/v1/models", "*/*", false}, {"/v1/watch", "text/event-stream", false},
	} {
		answer := w.ask(http.MethodGet, c.path, func(r *http.Request) { r.Header.Set("Accept", c.accept) })
		text, err := io.ReadAll(answer.Body)
		require.NoError(t, err)
		require.Equal(t, http.StatusUnauthorized, answer.StatusCode, c.path)
		require.Contains(t, string(text), "tritonctl ui prints a new link, which lets one browser in", c.path)
		require.Equal(t, c.page, strings.HasPrefix(string(text), "<!doctype html>"), "%s as %q", c.path, c.accept)
	}
}
