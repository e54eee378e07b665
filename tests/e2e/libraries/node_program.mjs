// The official JavaScript client. Arguments: the folder of the installed packages, the namespace.
// The checks and the report are those of checks.py.
import assert from 'node:assert/strict';
import net from 'node:net';
import { PassThrough, Writable } from 'node:stream';
import { once } from 'node:events';
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const [folder, namespace] = process.argv.slice(2);
const entry = createRequire(`${folder}/`).resolve('@kubernetes/client-node');
const k8s = await import(pathToFileURL(entry));

const name = `node-${process.hrtime.bigint()}`;
const labels = { of: name };
const labelSelector = `of=${name}`;
const config = new k8s.KubeConfig();
config.loadFromDefault();
const core = config.makeApiClient(k8s.CoreV1Api);
const objects = k8s.KubernetesObjectApi.makeApiClient(config);

const map = (name) => ({ metadata: { name, namespace, labels }, data: { a: '1' } });
const status = (call) => call.then(() => 200, (failure) => failure.code);

// A log that is no longer followed ends with this error, which the library leaves to nobody.
process.on('uncaughtException', (failure) => {
    if (failure.name !== 'AbortError') throw failure;
});

// Collects what is written, as text.
class Text extends Writable {
    text = '';
    _write(chunk, encoding, done) {
        this.text += chunk;
        this.emit('more');
        done();
    }
}

async function changeObjects() {
    await core.createNamespacedConfigMap({ namespace, body: map(name) });
    await objects.patch(
        { apiVersion: 'v1', kind: 'ConfigMap', metadata: { name, namespace }, data: { b: '2' } },
        undefined, undefined, undefined, undefined, k8s.PatchStrategy.MergePatch,
    );
    const read = await core.readNamespacedConfigMap({ namespace, name });
    assert.deepEqual(read.data, { a: '1', b: '2' });
    read.data.a = '9';
    await core.replaceNamespacedConfigMap({ namespace, name, body: read });
    assert.equal(await status(core.replaceNamespacedConfigMap({ namespace, name, body: read })), 409);
    await core.deleteNamespacedConfigMap({ namespace, name });
    assert.equal(await status(core.readNamespacedConfigMap({ namespace, name })), 404);
}

async function listInPages() {
    const wanted = [0, 1, 2].map((number) => `${name}-${number}`);
    for (const each of wanted) await core.createNamespacedConfigMap({ namespace, body: map(each) });
    const first = await core.listNamespacedConfigMap({ namespace, labelSelector, limit: 2 });
    const second = await core.listNamespacedConfigMap({
        namespace, labelSelector, limit: 2, _continue: first.metadata._continue,
    });
    assert.deepEqual([...first.items, ...second.items].map((item) => item.metadata.name), wanted);
    await core.deleteCollectionNamespacedConfigMap({ namespace, labelSelector });
}

async function watchChanges() {
    const path = `/api/v1/namespaces/${namespace}/configmaps`;
    const events = [];
    const changes = new PassThrough();
    const listed = () => core.listNamespacedConfigMap({ namespace, labelSelector });
    const informer = k8s.makeInformer(config, path, listed, labelSelector);
    for (const kind of ['add', 'update', 'delete']) {
        informer.on(kind, (changed) => {
            events.push([kind, changed.metadata.name]);
            changes.write('.');
        });
    }
    await informer.start();
    await core.createNamespacedConfigMap({ namespace, body: map(name) });
    while (events.length < 1) await once(changes, 'data');
    await core.deleteNamespacedConfigMap({ namespace, name });
    while (events.length < 2) await once(changes, 'data');
    await informer.stop();
    assert.deepEqual(events, [['add', name], ['delete', name]]);
}

async function readLog() {
    const last = await core.readNamespacedPodLog({ namespace, name: 'box', tailLines: 1, timestamps: true });
    assert.match(last, /^\S+Z second\n$/);
    const text = new Text();
    const following = await new k8s.Log(config).log(namespace, 'box', 'main', text, { follow: true });
    while (!text.text.includes('second\n')) await once(text, 'more');
    following.abort();
    assert.equal(text.text, 'first\nsecond\n');
}

// Both outputs and the final Status of a command.
async function run(command, input) {
    const [out, err] = [new Text(), new Text()];
    const ended = await new Promise((resolve, reject) => {
        new k8s.Exec(config)
            .exec(namespace, 'box', 'main', command, out, err, input, false, resolve)
            .then((socket) => socket.on('error', reject), reject);
    });
    return { out: out.text, err: err.text, status: ended.status, causes: ended.details?.causes };
}

async function execute() {
    const done = await run(['sh', '-c', 'echo out; echo err >&2; exit 3'], null);
    assert.deepEqual([done.out, done.err, done.causes[0].message], ['out\n', 'err\n', '3']);
}

async function executeWithInput() {
    const input = new PassThrough();
    input.write('a line\nanother line\n');
    assert.deepEqual(await run(['head', '-n1'], input), {
        out: 'a line\n', err: '', status: 'Success', causes: undefined,
    });
}

async function forwardPort() {
    const forwarding = new k8s.PortForward(config);
    const server = net.createServer((socket) => {
        forwarding.portForward(namespace, 'web', [80], socket, null, socket);
    });
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    const client = net.connect(server.address().port, '127.0.0.1');
    client.write('GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n');
    const [answer] = await once(client, 'data');
    assert.match(answer.toString(), /^HTTP\/1\.1 200 /);
    client.destroy();
    server.close();
}

const checks = {
    objects: changeObjects,
    list: listInPages,
    watch: watchChanges,
    log: readLog,
    exec: execute,
    'exec with input': executeWithInput,
    'port-forward': forwardPort,
};
const results = {};
for (const [check, body] of Object.entries(checks)) {
    const limit = new Promise((resolve) => setTimeout(resolve, 20_000, 'no end within 20 s').unref());
    results[check] = await Promise.race([limit, body().then(() => 'ok', (failure) => String(failure.stack))]);
}
console.log(JSON.stringify(results));
process.exit(0);
