// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package door

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"
)

// Look is the header that marks a request as one that may only look: the admin API then takes no orders. It takes rights away and never gives any.
const Look = "Conch-Only-Look"

const (
	// sessionLasts is how long a browser stays let in.
	sessionLasts = 12 * time.Hour
	// mostSessions, mostLinks and mostGuessers bound what is remembered; the oldest are forgotten.
	mostSessions = 1000
	mostLinks    = 100
	mostGuessers = 1000
	// guessing is the least time between two tokens of one sender of which the first is wrong.
	guessing = 200 * time.Millisecond
)

// Options of a door.
type Options struct {
	// Inside is what is behind the door. It gets the path of the request, and its User by UserOf.
	Inside http.Handler
	// Home is the path that a browser is sent to once it is in.
	Home string
	// Hosts are the names that browsers reach it by, without ports: localhost, 127.0.0.1, ::1 or a name of the network.
	Hosts []string
	// AllowChanges lets orders through.
	AllowChanges bool
	// Token says whether a text is the token of this door; nil: it has none.
	Token func(shown string) (bool, error)
	// Certificates: connections come with client certificates, which their listener has verified.
	Certificates bool
	// Cookie is the name of the cookie. Cookies know no ports: doors of one host need different names.
	Cookie string
	// Secure: browsers come over TLS.
	Secure bool
	Now    func() time.Time
	Logger *slog.Logger
}

// User is who came in.
type User struct {
	// Name is that of the client certificate; empty where nobody is known by name.
	Name string
}

type userKey struct{}

// UserOf is who came in by a door with the request of ctx.
func UserOf(ctx context.Context) User {
	u, _ := ctx.Value(userKey{}).(User)
	return u
}

// Door lets browsers in. Its methods are safe for concurrent use.
type Door struct {
	o     Options
	cross *http.CrossOriginProtection

	mu       sync.Mutex
	sessions map[[32]byte]time.Time // by the digest of their secret, when they end
	links    map[[32]byte]time.Time
	guessed  map[string]time.Time // until when no token of a sender counts that has shown a wrong one
}

// New makes a door.
func New(o Options) *Door {
	return &Door{o: o, cross: http.NewCrossOriginProtection(), sessions: map[[32]byte]time.Time{}, links: map[[32]byte]time.Time{}, guessed: map[string]time.Time{}}
}

// linkPath is where one-time links lead, signInPath where tokens are shown.
const (
	linkPath   = "/open"
	signInPath = "/sign-in"
)

// Link makes the path and query of a link that lets one browser in, once, within a time.
func (d *Door) Link(within time.Duration) string {
	key := secret()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.remember(d.links, key, within, mostLinks)
	return linkPath + "?key=" + key
}

// secret is 256 random bits as text.
func secret() string {
	var bits [32]byte
	_, _ = rand.Read(bits[:]) // never fails
	return base64.RawURLEncoding.EncodeToString(bits[:])
}

// remember keeps a secret; the lock is held.
func (d *Door) remember(into map[[32]byte]time.Time, key string, within time.Duration, most int) {
	now := d.o.Now()
	makeRoom(into, now, most)
	into[sha256.Sum256([]byte(key))] = now.Add(within)
}

// makeRoom forgets what has ended by now, and of what is left the oldest, until there are fewer than so many.
func makeRoom[K comparable](in map[K]time.Time, now time.Time, most int) {
	for k, ends := range in {
		if now.After(ends) {
			delete(in, k)
		}
	}
	for len(in) >= most {
		var oldest K
		var first time.Time
		for k, ends := range in {
			if first.IsZero() || ends.Before(first) {
				oldest, first = k, ends
			}
		}
		delete(in, oldest)
	}
}

// take reports whether a link may be used, which it may once.
func (d *Door) take(key string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	digest := sha256.Sum256([]byte(key))
	ends, known := d.links[digest]
	delete(d.links, digest)
	return known && !d.o.Now().After(ends)
}

// ServeHTTP implements http.Handler.
func (d *Door) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	if !slices.Contains(d.o.Hosts, hostOf(r.Host)) {
		d.refuse(w, r, http.StatusMisdirectedRequest, "wrong name", fmt.Sprintf("this door is not known by the name %q; it takes requests by %s", short(hostOf(r.Host)), strings.Join(d.o.Hosts, ", ")))
		return
	}
	if err := d.cross.Check(r); err != nil {
		d.refuse(w, r, http.StatusForbidden, "another page", "a page of another origin sent this request, and nothing was done")
		return
	}
	switch {
	case r.URL.Path == linkPath && r.Method == http.MethodGet && !d.o.Certificates:
		d.open(w, r)
	case r.URL.Path == signInPath && d.o.Token != nil:
		d.signIn(w, r)
	default:
		d.enter(w, r)
	}
}

// enter hands the request of a browser that is let in to what is inside.
func (d *Door) enter(w http.ResponseWriter, r *http.Request) {
	user, in := d.user(r)
	if !in {
		if d.o.Token != nil && d.wantsPage(r) {
			d.page(w, http.StatusUnauthorized, signInForm)
			return
		}
		d.refuse(w, r, http.StatusUnauthorized, "this browser has opened no link, or its session has ended", d.howIn())
		return
	}
	// A page of another origin that the browser has may not even read: an image or an EventSource needs no permission to be sent.
	if site := r.Header.Get("Sec-Fetch-Site"); (site == "cross-site" || site == "same-site") && r.Header.Get("Sec-Fetch-Mode") != "navigate" {
		d.refuse(w, r, http.StatusForbidden, "another page", "a page of another origin asked for this")
		return
	}
	if r.URL.Path == "/" {
		http.Redirect(w, r, d.o.Home, http.StatusFound)
		return
	}
	inside := r.Clone(context.WithValue(r.Context(), userKey{}, user))
	inside.Header.Del(Look)
	if !d.o.AllowChanges {
		inside.Header.Set(Look, "true")
	}
	inside.Header.Del("Cookie") // what is inside has no need of it
	d.o.Inside.ServeHTTP(w, inside)
}

// user is who comes: by certificate, or with the cookie of a session.
func (d *Door) user(r *http.Request) (User, bool) {
	if d.o.Certificates && r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
		return User{Name: r.TLS.VerifiedChains[0][0].Subject.CommonName}, d.o.Token == nil || d.session(r)
	}
	return User{}, !d.o.Certificates && d.session(r)
}

// session reports whether the request has the cookie of a session.
func (d *Door) session(r *http.Request) bool {
	cookie, err := r.Cookie(d.o.Cookie)
	if err != nil {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	ends, known := d.sessions[sha256.Sum256([]byte(cookie.Value))]
	return known && d.o.Now().Before(ends)
}

// begin begins a session.
func (d *Door) begin(w http.ResponseWriter) {
	key := secret()
	d.mu.Lock()
	d.remember(d.sessions, key, sessionLasts, mostSessions)
	d.mu.Unlock()
	http.SetCookie(w, &http.Cookie{
		Name: d.o.Cookie, Value: key, Path: "/", HttpOnly: true, Secure: d.o.Secure, SameSite: http.SameSiteStrictMode, MaxAge: int(sessionLasts.Seconds()),
	})
}

// open uses a one-time link. It answers with a page that goes on, and not with a redirect: a link that was followed from another site would be
// redirected without the cookie.
func (d *Door) open(w http.ResponseWriter, r *http.Request) {
	if !d.take(r.URL.Query().Get("key")) {
		d.refuse(w, r, http.StatusUnauthorized, "the link was used before, or is too old", d.howIn())
		return
	}
	d.begin(w)
	w.Header().Set("Refresh", "0; url="+d.o.Home)
	d.page(w, http.StatusOK, `<p>You are let in. <a href="`+d.o.Home+`">Go on to the console</a></p>`)
}

// signIn takes the token.
func (d *Door) signIn(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		d.page(w, http.StatusOK, signInForm)
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, 10_000)
	right, err := d.o.Token(r.PostFormValue("token"))
	switch {
	case err != nil:
		d.o.Logger.Error("nobody is let in to the console", "error", err)
		d.refuse(w, r, http.StatusServiceUnavailable, "conch cannot read its token", "its log says why")
	case !right || !d.unhurried(sender(r)):
		d.wrong(sender(r))
		d.o.Logger.Warn("a wrong token was shown to the console", "from", r.RemoteAddr)
		d.page(w, http.StatusUnauthorized, `<p role="alert">That is not the token, or a wrong one was shown a moment ago.</p>`+signInForm)
	default:
		d.begin(w)
		http.Redirect(w, r, d.o.Home, http.StatusSeeOther)
	}
}

// unhurried reports that a sender has shown no wrong token a moment ago: tokens cannot be tried faster than that. Others may sign in meanwhile.
func (d *Door) unhurried(from string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.o.Now().After(d.guessed[from])
}

func (d *Door) wrong(from string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.o.Now()
	makeRoom(d.guessed, now, mostGuessers)
	d.guessed[from] = now.Add(guessing)
}

// sender is the address that a request comes from: of IPv6 its network, since one machine has all addresses of it.
func sender(r *http.Request) string {
	at, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	address := at.Addr().Unmap().WithZone("")
	if address.Is6() {
		if network, err := address.Prefix(64); err == nil {
			return network.String()
		}
	}
	return address.String()
}

func (d *Door) howIn() string {
	switch {
	case d.o.Certificates && d.o.Token == nil:
		return "this door opens for a client certificate"
	case d.o.Token != nil:
		return "sign in at " + signInPath
	default:
		return "tritonctl ui prints a new link, which lets one browser in"
	}
}

// Loopback are the names of this machine's own addresses, for Options.Hosts.
func Loopback() []string { return []string{"localhost", "127.0.0.1", "::1"} }

// hostOf is a Host header without its port, in lower case.
func hostOf(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
}

// wantsPage reports whether a person's browser asks for a page: it says so, or asks for one of the door's or the console's own by its address,
// and takes any kind of answer.
func (d *Door) wantsPage(r *http.Request) bool {
	accept := r.Header.Get("Accept")
	ours := slices.Contains([]string{"/", d.o.Home, linkPath, signInPath}, r.URL.Path) && (accept == "" || strings.Contains(accept, "*/*"))
	return (r.Method == http.MethodGet || r.Method == http.MethodHead) && (ours || strings.Contains(accept, "text/html"))
}

// refuse answers a person with a page and a program with JSON as the admin API does.
func (d *Door) refuse(w http.ResponseWriter, r *http.Request, status int, what, how string) {
	if d.wantsPage(r) {
		d.page(w, status, "<p role=\"alert\">Not let in: "+escape(what)+".</p><p>"+escape(how)+".</p>")
		return
	}
	code := "refused"
	if status == http.StatusUnauthorized {
		code = "unauthenticated"
	}
	text, _ := json.Marshal(map[string]any{"error": map[string]string{"code": code, "message": what + ": " + how}}) // strings can be encoded
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(append(text, '\n')) // the browser has gone
}

func short(text string) string { return text[:min(len(text), 100)] }
