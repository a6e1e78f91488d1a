package console

import (
	"errors"
	"net/http"
)

// fault is an error for the user, with its fix.
type fault struct {
	Status int    `json:"status"`
	Title  string `json:"title"`
	Detail string `json:"detail"`
	Fix    string `json:"fix,omitempty"`
}

func (f *fault) Error() string { return f.Title + ": " + f.Detail }

// asFault returns the fault that describes an error.
func asFault(err error) *fault {
	if f, ok := errors.AsType[*fault](err); ok {
		return f
	}
	return &fault{
		Status: http.StatusServiceUnavailable, Title: "Not available now", Detail: err.Error(),
		Fix: "Try again. If that does not help, timerd doctor and timerd status name the problem.",
	}
}

// badRequest is a fault of the request.
func badRequest(detail, fix string) *fault {
	return &fault{Status: http.StatusBadRequest, Title: "Not understood", Detail: detail, Fix: fix}
}
