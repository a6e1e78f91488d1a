package console

import "net/http"

// apiPath begins the addresses of the JSON API.
const apiPath = "/api/v1"

// Handler returns what answers the console's requests, guards included.
func (c *Console) Handler() http.Handler {
	mux := http.NewServeMux()
	for path, read := range map[string]pageFunc{
		"/{$}": c.overview, "/timers": c.timers, "/timers/{key}": c.timer, "/repeating": c.repeating,
		"/dead": c.dead, "/dead/{seq}": c.letter, "/holds": c.holdsPage,
	} {
		c.register(mux, path, read)
	}
	mux.HandleFunc("GET /search", c.inTurn(c.search))
	mux.HandleFunc("GET "+apiPath+"/search", c.inTurn(c.json(c.readSearch)))
	mux.HandleFunc("GET "+apiPath+"/openapi.json", c.openAPI)
	mux.HandleFunc("GET /live", c.live)
	mux.Handle("GET /static/", c.files)
	if c.actions != nil {
		c.registerActions(mux)
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		c.fail(w, r, &fault{Status: http.StatusNotFound, Title: "No such page", Detail: "There is nothing at this address.",
			Fix: "A timer's page is /timers/ and its key, percent-encoded: / is written %2F."})
	})
	return c.protect(mux)
}

// register has a page answer people and programs.
func (c *Console) register(mux *http.ServeMux, path string, read pageFunc) {
	mux.HandleFunc("GET "+path, c.inTurn(c.html(read)))
	api := apiPath + path
	if path == "/{$}" {
		api = apiPath + "/overview"
	}
	mux.HandleFunc("GET "+api, c.inTurn(c.json(read)))
}

// registerActions adds all that changes anything. A console that only looks has none of it.
func (c *Console) registerActions(mux *http.ServeMux) {
	c.register(mux, "/jobs", c.jobsPage)
	c.register(mux, "/jobs/{id}", c.jobPage)
	mux.HandleFunc("GET /jobs/{id}/live", c.liveJob)
	mux.HandleFunc("POST /actions", c.inTurn(c.action))
	mux.HandleFunc("POST /jobs/{id}", c.inTurn(c.confirmJob))
	mux.HandleFunc("POST "+apiPath+"/jobs", c.inTurn(c.apiAction))
	mux.HandleFunc("POST "+apiPath+"/jobs/{id}", c.inTurn(c.apiConfirm))
}
