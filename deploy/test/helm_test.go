package deploytest

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"
)

const chart = "../helm/timerd"

var update = flag.Bool("update", false, "write what helm renders into testdata/helm")

// helmPath builds the helm that go.mod names, once.
var helmPath = sync.OnceValues(func() (string, error) {
	out, err := exec.Command("go", "tool", "-n", "helm").Output()
	return strings.TrimSpace(string(out)), err
})

// helm runs it.
func helm(t *testing.T, args ...string) (out, errs string, err error) {
	t.Helper()
	path, err := helmPath()
	if err != nil {
		t.Fatalf("go tool -n helm: %v", err)
	}
	cmd := exec.CommandContext(t.Context(), path, args...)
	home := t.TempDir()
	cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	return stdout.String(), stderr.String(), err
}

// template renders the chart as a release named rel in the namespace timers.
func template(t *testing.T, values string) string {
	t.Helper()
	out, errs, err := helm(t, "template", "rel", chart, "--namespace", "timers", "--values", values)
	if err != nil {
		t.Fatalf("helm template with %s: %v\n%s", values, err, errs)
	}
	return out
}

// objects decodes manifests as a strict API server does: a field that is unknown, twice there, or of another type is an
// error.
func objects(t *testing.T, manifests string) (found []runtime.Object) {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{apps.AddToScheme, core.AddToScheme, networking.AddToScheme,
		policy.AddToScheme, monitoring.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	for text := range strings.SplitSeq(manifests, "\n---\n") {
		if !strings.Contains(text, "kind:") {
			continue
		}
		object, _, err := decoder.Decode([]byte(text), nil, nil)
		if err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		found = append(found, object)
	}
	return found
}

// all returns the objects of a type.
func all[T runtime.Object](objects []runtime.Object) (found []T) {
	for _, object := range objects {
		if o, ok := object.(T); ok {
			found = append(found, o)
		}
	}
	return found
}

// renderings calls f with each file of values in testdata/helm and the chart rendered with it.
func renderings(t *testing.T, f func(t *testing.T, values, manifests string)) {
	t.Helper()
	files, err := filepath.Glob("testdata/helm/*.values.yaml")
	if err != nil || len(files) < 3 {
		t.Fatalf("%d files of values, %v", len(files), err)
	}
	for _, values := range files {
		t.Run(strings.TrimSuffix(filepath.Base(values), ".values.yaml"), func(t *testing.T) {
			f(t, values, template(t, values))
		})
	}
}

// helm's linter has no complaint, and the rendered chart is the last reviewed one.
func TestHelmRenders(t *testing.T) {
	renderings(t, func(t *testing.T, values, manifests string) {
		if out, errs, err := helm(t, "lint", "--strict", chart, "--values", values); err != nil {
			t.Errorf("helm lint: %v\n%s%s", err, out, errs)
		}
		golden := strings.Replace(values, ".values.", ".golden.", 1)
		if *update {
			if err := os.WriteFile(golden, []byte(manifests), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if want := read(t, golden); manifests != want {
			t.Errorf("the chart differs from %s; look at the difference after go test -run Helm -update\n%s",
				golden, manifests)
		}
	})
}

// Kubernetes knows every field, and each reference finds its object.
func TestHelmIsValid(t *testing.T) {
	renderings(t, func(t *testing.T, _, manifests string) {
		found := objects(t, manifests)
		deployments := all[*apps.Deployment](found)
		for _, d := range deployments {
			checkDeployment(t, d, all[*core.ConfigMap](found))
		}
		for _, s := range all[*core.Service](found) {
			matching := slices.DeleteFunc(slices.Clone(deployments), func(d *apps.Deployment) bool {
				return !labels.SelectorFromSet(s.Spec.Selector).Matches(labels.Set(d.Spec.Template.Labels))
			})
			if len(matching) != 1 {
				t.Fatalf("service %s selects the pods of %d deployments", s.Name, len(matching))
			}
			for _, port := range s.Spec.Ports {
				if !hasPort(matching[0], port.TargetPort) {
					t.Errorf("service %s leads to the port %s, which %s has not", s.Name, port.TargetPort.String(),
						matching[0].Name)
				}
			}
		}
		for _, b := range all[*policy.PodDisruptionBudget](found) {
			if !slices.ContainsFunc(deployments, func(d *apps.Deployment) bool {
				return labels.SelectorFromSet(b.Spec.Selector.MatchLabels).Matches(labels.Set(d.Spec.Template.Labels))
			}) {
				t.Errorf("the disruption budget %s selects no pods", b.Name)
			}
		}
		for _, m := range all[*monitoring.ServiceMonitor](found) {
			checkMonitor(t, m, all[*core.Service](found))
		}
	})
}

func hasPort(d *apps.Deployment, port intstr.IntOrString) bool {
	return slices.ContainsFunc(d.Spec.Template.Spec.Containers[0].Ports, func(p core.ContainerPort) bool {
		return p.Name == port.StrVal || p.ContainerPort == port.IntVal
	})
}

// checkMonitor checks that Prometheus finds a service for each deployment.
func checkMonitor(t *testing.T, m *monitoring.ServiceMonitor, services []*core.Service) {
	t.Helper()
	scraped := 0
	for _, s := range services {
		if !labels.SelectorFromSet(m.Spec.Selector.MatchLabels).Matches(labels.Set(s.Labels)) {
			continue
		}
		if slices.ContainsFunc(s.Spec.Ports, func(p core.ServicePort) bool {
			return p.Name == m.Spec.Endpoints[0].Port
		}) {
			scraped++
		}
	}
	if scraped == 0 {
		t.Errorf("the service monitor %s selects no service with the port %s", m.Name, m.Spec.Endpoints[0].Port)
	}
}

// checkDeployment checks the rules for every pod of timerd.
func checkDeployment(t *testing.T, d *apps.Deployment, maps []*core.ConfigMap) {
	t.Helper()
	if !labels.SelectorFromSet(d.Spec.Selector.MatchLabels).Matches(labels.Set(d.Spec.Template.Labels)) {
		t.Errorf("%s does not select its own pods", d.Name)
	}
	pod := d.Spec.Template.Spec
	c := pod.Containers[0]
	for what, ok := range map[string]bool{
		"the user is 65532": *pod.SecurityContext.RunAsNonRoot && *pod.SecurityContext.RunAsUser == 65532,
		"its files are read-only": *c.SecurityContext.ReadOnlyRootFilesystem &&
			!*c.SecurityContext.AllowPrivilegeEscalation,
		"it has no capabilities":   slices.Equal(c.SecurityContext.Capabilities.Drop, []core.Capability{"ALL"}),
		"it gets no token":         !*pod.AutomountServiceAccountToken,
		"it has 15 s to stop":      *pod.TerminationGracePeriodSeconds == 15,
		"it has limits":            !c.Resources.Limits.Memory().IsZero() && !c.Resources.Requests.Cpu().IsZero(),
		"pods keep off each other": pod.Affinity != nil && pod.Affinity.PodAntiAffinity != nil,
		"liveness asks for life": c.LivenessProbe.HTTPGet.Path == "/healthz" &&
			c.StartupProbe.HTTPGet.Path == "/healthz",
		"readiness asks for more":    c.ReadinessProbe.HTTPGet.Path == "/readyz",
		"a start may take 30 s":      c.StartupProbe.FailureThreshold*c.StartupProbe.PeriodSeconds > 40,
		"an update stops none early": d.Spec.Strategy.RollingUpdate.MaxUnavailable.IntVal == 0,
	} {
		if !ok {
			t.Errorf("%s: not so: %s", d.Name, what)
		}
	}
	for _, probe := range []*core.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
		if !hasPort(d, probe.HTTPGet.Port) {
			t.Errorf("%s: a probe asks the port %s, which is not there", d.Name, probe.HTTPGet.Port.String())
		}
	}
	for _, mount := range c.VolumeMounts {
		if !slices.ContainsFunc(pod.Volumes, func(v core.Volume) bool { return v.Name == mount.Name }) {
			t.Errorf("%s: there is no volume %s", d.Name, mount.Name)
		}
	}
	for _, volume := range pod.Volumes {
		if volume.ConfigMap != nil && !slices.ContainsFunc(maps,
			func(m *core.ConfigMap) bool { return m.Name == volume.ConfigMap.Name }) {
			t.Errorf("%s: there is no ConfigMap %s", d.Name, volume.ConfigMap.Name)
		}
	}
	seen := map[string]bool{}
	for _, variable := range c.Env {
		if seen[variable.Name] {
			t.Errorf("%s: %s is set twice", d.Name, variable.Name)
		}
		seen[variable.Name] = true
	}
}

// The commands of deploy/README.md work with the chart, with the Secret they create.
func TestHelmAsTheReadmeHasIt(t *testing.T) {
	_, section, _ := strings.Cut(read(t, "../README.md"), "## Kubernetes\n")
	section, _, _ = strings.Cut(section, "\n## ")
	commands := strings.ReplaceAll(section, "\\\n", " ")
	installs := regexp.MustCompile(
		`(?m)^helm (install|upgrade) timerd deploy/helm/timerd --namespace timers (.*)$`).FindAllStringSubmatch(
		commands, -1)
	secret := regexp.MustCompile(`secret generic (\S+) --from-literal=url=`).FindStringSubmatch(commands)
	if len(installs) != 2 || secret == nil {
		t.Fatalf("%d commands, the Secret %q", len(installs), secret)
	}
	var args []string
	for _, install := range installs { // the second one keeps the values of the first
		args = append(args, strings.Fields(strings.ReplaceAll(strings.ReplaceAll(install[2], "'", ""), "--reuse-values",
			""))...)
	}
	out, errs, err := helm(t, append([]string{"template", "timerd", chart, "--namespace", "timers"}, args...)...)
	if err != nil {
		t.Fatalf("%v\n%s", err, errs)
	}
	container := all[*apps.Deployment](objects(t, out))[0].Spec.Template.Spec.Containers[0]
	if container.Image != "registry.example.com/timerd:mine" {
		t.Errorf("the image is %s", container.Image)
	}
	found := map[string]string{}
	for _, v := range container.Env {
		found[v.Name] = v.Value
		if v.ValueFrom != nil {
			found[v.Name] = v.ValueFrom.SecretKeyRef.Name
		}
	}
	if found["TIMERD_STREAM_REPLICAS"] != "3" || found["TIMERD_NAMESPACES"] != "shop" ||
		found["TIMERD_REDIS_URL"] != secret[1] {
		t.Errorf("variables: %v", found)
	}
}

// A node can be drained while no pod is ready, by every Kubernetes that knows how.
func TestHelmLetsNodesBeDrained(t *testing.T) {
	for version, want := range map[string]bool{"1.25.0": false, "1.26.9": false, "1.27.0": true, "1.34.1": true} {
		out, errs, err := helm(t, "template", "rel", chart, "--values", "testdata/helm/full.values.yaml",
			"--kube-version", version)
		if err != nil {
			t.Fatalf("%v\n%s", err, errs)
		}
		for _, b := range all[*policy.PodDisruptionBudget](objects(t, out)) {
			if got := b.Spec.UnhealthyPodEvictionPolicy; (got != nil && *got == policy.AlwaysAllow) != want {
				t.Errorf("Kubernetes %s: %s evicts the unhealthy %v", version, b.Name, got)
			}
		}
	}
}

// Go keeps below the limit on a container's memory, however that is written.
func TestHelmTellsGoItsMemory(t *testing.T) {
	for limit, want := range map[string]string{"512Mi": "483183820", "1Gi": "966367641", "0.5Gi": "483183820",
		"1000000000": "900000000", "700M": "630000000", "null": ""} {
		out, errs, err := helm(t, "template", "rel", chart, "--values", "testdata/helm/least.values.yaml", "--set",
			"resources.limits.memory="+limit)
		if err != nil {
			t.Fatalf("%v\n%s", err, errs)
		}
		got := ""
		for _, v := range all[*apps.Deployment](objects(t, out))[0].Spec.Template.Spec.Containers[0].Env {
			if v.Name == "GOMEMLIMIT" {
				got = v.Value
			}
		}
		if got != want {
			t.Errorf("limits.memory %s: GOMEMLIMIT %q, want %q", limit, got, want)
		}
	}
}

// The rules of the chart are the file's.
func TestHelmHasTheRules(t *testing.T) {
	var file monitoring.PrometheusRuleSpec
	if err := yaml.UnmarshalStrict([]byte(read(t, rulesFile)), &file); err != nil {
		t.Fatal(err)
	}
	want, err := json.Marshal(file)
	if err != nil {
		t.Fatal(err)
	}
	for values, without := range map[string]string{"full": "", "cluster": "TimerdInstanceMissing"} {
		found := all[*monitoring.PrometheusRule](objects(t, template(t, "testdata/helm/"+values+".values.yaml")))
		if len(found) != 1 {
			t.Fatalf("%s: %d objects with rules", values, len(found))
		}
		if without != "" {
			has := func(r monitoring.Rule) bool { return r.Alert == without }
			if slices.ContainsFunc(found[0].Spec.Groups[0].Rules, has) {
				t.Errorf("%s: the rules still have %s", values, without)
			}
			continue
		}
		if got, err := json.Marshal(found[0].Spec); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %v; the rules are\n%s\nwant\n%s", values, err, got, want)
		}
	}
}

// The chart refuses settings that cannot work, with the fix.
func TestHelmRefuses(t *testing.T) {
	least := []string{"template", "rel", chart, "--values", "testdata/helm/least.values.yaml"}
	for set, want := range map[string]string{
		"replica=2":                              "additional properties 'replica' not allowed",
		"redis.urll=x":                           "'urll' not allowed",
		"settings.TIMERD_RETRIES=x":              "'TIMERD_RETRIES' not allowed",
		"settings.TIMERD_LEASE=10":               "want string",
		"namespaces=null":                        "namespaces is needed",
		"namespaces[0]=a:b:c:d":                  "does not match pattern",
		"redis.url=redis://me:secret@redis:6379": "does not match pattern",
		"redis.url=":                             "redis.url is needed, or redis.urlSecret.name",
		"nats.url=embedded":                      "does not match pattern",
		"nats.urlSecret.name=x":                  "nats.url and nats.urlSecret.name are both set",
		"redis.tls.ca=ca.crt":                    "redis.tls.secret is needed",
		"console.enabled=true":                   "console.passwordSecret.name is needed",
		"resources.limits.memory=much":           "resources.limits.memory: much: want a number of bytes",
		"prometheusRule.enabled=true," +
			"prometheusRule.without[0]=TimerdInstancesMissing": "there is no alert TimerdInstancesMissing: it is one",
		"console.enabled=true,console.passwordSecret.name=x,console.ingress.enabled=true," +
			"console.ingress.hosts[0]=a.example.com": "console.ingress.tlsSecret is needed",
		"deliver.files[0].key=x":                  "'key' not allowed",
		"console.password=secret":                 "'password' not allowed",
		"deliver.enabled=true":                    "deliver.config.endpoints is needed",
		"deliver.secrets[0].value=whsec_secret":   "'value' not allowed",
		"image.digest=sha256:1234":                "does not match pattern",
		"podDisruptionBudget.maxUnavailable=most": "does not match pattern",
	} {
		out, errs, err := helm(t, append(slices.Clone(least), "--set", set)...)
		if err == nil || !strings.Contains(errs, want) {
			t.Errorf("--set %s: %v, want %q\n%s%.200s", set, err, want, errs, out)
		}
	}
}

// The chart takes every setting that it does not set by itself.
func TestHelmKnowsTheSettings(t *testing.T) {
	var schema struct {
		Properties struct {
			Settings struct{ Properties map[string]any }
		}
	}
	if err := json.Unmarshal([]byte(read(t, chart+"/values.schema.json")), &schema); err != nil {
		t.Fatal(err)
	}
	taken := schema.Properties.Settings.Properties
	own := regexp.MustCompile(`^TIMERD_(REDIS|NATS|CONSOLE)_|^TIMERD_(NAMESPACES|HTTP_ADDR|DATA_DIR)$`)
	there := regexp.MustCompile(`\bTIMERD_[A-Z_]*[A-Z]\b`).FindAllString(read(t, "../../docs/reference.md"), -1)
	for _, name := range there {
		if _, ok := taken[name]; ok == own.MatchString(name) {
			t.Errorf("values.schema.json: settings: %s is there: %t", name, ok)
		}
	}
	for name := range taken {
		if !slices.Contains(there, name) {
			t.Errorf("values.schema.json: settings: timerd has no %s", name)
		}
	}
}

// What helm packages has the rules themselves, not a link to them.
func TestHelmPackages(t *testing.T) {
	dir := t.TempDir()
	if out, errs, err := helm(t, "package", chart, "--destination", dir); err != nil {
		t.Fatalf("helm package: %v\n%s%s", err, out, errs)
	}
	packages, err := filepath.Glob(dir + "/timerd-*.tgz")
	if err != nil || len(packages) != 1 {
		t.Fatalf("%q, %v", packages, err)
	}
	out, err := exec.CommandContext(t.Context(), "tar", "-xzOf", packages[0], "timerd/files/timerd.rules.yml").Output()
	if err != nil || string(out) != read(t, rulesFile) {
		t.Errorf("tar: %v; the package has the rules\n%s", err, out)
	}
}
