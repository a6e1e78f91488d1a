package browsertest

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/fetch"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
)

// A page of another site that posts the console's own forms changes nothing.
func TestAnotherSiteCannotAct(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.set("shop:order:timeout:42", "{}", time.Hour)
	b := openTab(t, s.url, look{width: wide})
	b.open("/timers?q=shop")
	b.pick(1)
	b.follow(button, "Cancel…")
	b.sees("main", "1 timer")
	form := must[string](b, `() => {
		const form = document.querySelector("main form:has(button.primary, button.danger)").cloneNode(true);
		form.action = new URL(form.action).href;
		return form.outerHTML;
	}`)
	form = strings.Replace(form, `action="/`, `action="`+s.url+"/", 1)
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = fmt.Fprintf(w, "<!doctype html><title>timerd</title><main>%s</main>", form)
	}))
	defer other.Close()
	evil := openTab(t, "http://127.0.0.1:", look{width: wide}) // both of them
	evil.base = other.URL
	evil.open("/")
	evil.follow("main button.primary, main button.danger", "*")
	evil.sees("main", "another site")
	if _, found := s.get("shop:order:timeout:42"); !found {
		t.Error("the timer is gone")
	}
	evil.forgive("403 (Forbidden)")
	evil.base = "http://127.0.0.1:"
	// It was the right form: the console's own page goes on with it.
	b.confirm("Cancel", "1 timer")
	b.done("Done. 1 ")
	s.gone("shop:order:timeout:42")
}

// By a name, over plain HTTP, browsers send fewer headers that identify a site: actions work there as by the address.
func TestActionsUnderAHostName(t *testing.T) {
	t.Parallel()
	s := newSystem(t, "TIMERD_CONSOLE_HOSTS="+hostName)
	s.set("shop:order:timeout:42", "{}", time.Hour)
	at, err := url.Parse(s.url)
	if err != nil {
		t.Fatal(err)
	}
	b := openTab(t, "http://"+hostName+":"+at.Port(), look{width: wide})
	b.open("/timers/shop%3Aorder%3Atimeout%3A42")
	b.follow(button, "Cancel…")
	b.confirm("Cancel", "1 timer")
	b.done("Done. 1 ")
	s.gone("shop:order:timeout:42")
}

// Whoever has not given the password sees how to, and nothing else.
func TestPassword(t *testing.T) {
	t.Parallel()
	const password = "correct horse"
	s := newSystem(t, "TIMERD_CONSOLE_PASSWORD="+password)
	s.set("shop:order:timeout:42", "{}", time.Hour)
	b := openTab(t, s.url, look{width: phone})
	b.declinePassword()
	b.open("/timers")
	b.sees("main", "password")
	b.readable()
	b.forgive("status of 401")
	command(b, fetch.Disable, struct{}{})
	basic := "Basic " + base64.StdEncoding.EncodeToString([]byte("timerd:"+password))
	command(b, network.SetExtraHTTPHeaders, network.SetExtraHTTPHeadersParams{
		Headers: network.Headers{"Authorization": basic}})
	b.open("/timers")
	b.sees("main", "shop:order:timeout:42")
}

// declinePassword has the browser not ask for a password, as if somebody closed its dialog, until fetch.Disable.
func (b *tab) declinePassword() {
	b.t.Helper()
	proceed := func(event any) {
		switch e := event.(type) {
		case *fetch.EventRequestPaused:
			// or the page does not come
			_, _ = chromedp.Call(b.ctx, fetch.ContinueRequest, fetch.ContinueRequestParams{RequestID: e.RequestID})
		case *fetch.EventAuthRequired:
			no := &fetch.AuthChallengeResponse{Response: fetch.AuthChallengeResponseResponseCancelAuth}
			_, _ = chromedp.Call(b.ctx, fetch.ContinueWithAuth,
				fetch.ContinueWithAuthParams{RequestID: e.RequestID, AuthChallengeResponse: no})
		}
	}
	if err := chromedp.Listen(b.ctx, func(event any) { go proceed(event) }); err != nil {
		b.t.Fatal(err)
	}
	yes := true
	command(b, fetch.Enable, fetch.EnableParams{HandleAuthRequests: &yes})
}
