"""Tests of predictions for new records: preparation, classes, units, stored results, wrong records."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import topdp
from topdp import topology
from topdp.data.preparation import Preparation
from topdp.errors import DataError, InputError, TopdpError
from topdp.runs import config, run

GENERATOR = np.random.default_rng(0)
RECORDS = 240
FRAME = {
    "age": GENERATOR.uniform(0, 100, RECORDS),
    "pressure": GENERATOR.uniform(80, 200, RECORDS),
    "ward": GENERATOR.choice(["a", "b"], RECORDS),
    "hospital": GENERATOR.choice(["north", "south", "east"], RECORDS),
}
FRAME["ill"] = np.where(FRAME["age"] + FRAME["pressure"] - 80 > 110, "yes", "no")
FRAME["stay"] = FRAME["age"] / 10 + (FRAME["pressure"] - 80) / 20
INPUTS = {"ranges": {"age": [0, 100], "pressure": [80, 200]}, "categories": {"ward": ["a", "b"]}}
CLASSES = {**INPUTS, "target": "ill", "classes": ["no", "yes"], "ignore": ["stay"]}
NUMBERS = {"ranges": {**INPUTS["ranges"], "stay": [0, 16]}, "categories": INPUTS["categories"]}
NUMBERS |= {"target": "stay", "ignore": ["ill"]}
# A run without noise, so that predictions can be compared with the truth.
QUIET = {"method": "no-noise", "rounds": 60, "clip": 100.0, "learning_rate": 0.5, "fading": "none"}


def shards_of(schema, **changes):
    return topdp.Shards.from_frame(FRAME, site="hospital", schema={**schema, **changes})


def trained(shards, model, **options):
    return topdp.train(model, shards, topology.complete(shards.agents), **{**QUIET, **options})


@pytest.fixture(scope="module")
def classified():
    return trained(shards_of(CLASSES), "mlp")


@pytest.fixture(scope="module")
def estimated():
    return trained(shards_of(NUMBERS), nn.Linear(5, 1), loss="mse", learning_rate=0.2, rounds=200)


def test_classes_of_a_frame_are_predicted_by_name(classified):
    predicted = classified.predict(FRAME)
    assert (predicted == FRAME["ill"]).mean() > 0.95
    shares = classified.predict_proba(FRAME)
    assert shares.shape == (RECORDS, 2) and np.allclose(shares.sum(1), 1)
    assert (classified.classes[shares.argmax(1)] == predicted).all()


def test_numbers_are_predicted_in_the_units_of_the_target(estimated):
    predicted = estimated.predict(FRAME)
    assert predicted.shape == (RECORDS,)
    assert np.abs(predicted - FRAME["stay"]).max() < 0.2
    with pytest.raises(InputError, match="loss mse, which predicts numbers"):
        estimated.predict_proba(FRAME)


def test_only_input_columns_are_needed_and_their_order_and_others_do_not_matter(classified):
    few = {name: FRAME[name] for name in ("ward", "pressure", "age")}
    assert (classified.predict(few) == classified.predict({**FRAME, "extra": FRAME["age"]})).all()
    one = {name: values[7:8] for name, values in few.items()}
    assert classified.predict(one) == classified.predict(few)[7]


def test_frames_of_pandas_and_files_are_predicted_like_dictionaries(classified, tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(FRAME).drop(columns=["ill", "stay"])
    frame.to_csv(tmp_path / "new.csv", index=False)
    expected = classified.predict_proba(FRAME)
    assert np.allclose(classified.predict_proba(frame), expected)
    assert np.allclose(classified.predict_proba(tmp_path / "new.csv"), expected)


def test_agents_are_named_by_their_sites(classified):
    assert classified.labels == ("east", "north", "south")
    for number, name in enumerate(classified.labels):
        outputs = classified.outputs(FRAME, name)
        assert torch.equal(outputs, classified.outputs(FRAME, number))
        assert torch.equal(outputs, classified.model(name)(classified.predictor.preparation.records(FRAME)))
    mean = torch.cat([part.reshape(-1) for part in classified.model().parameters()])
    assert torch.allclose(mean, classified.estimates.mean(0))
    with pytest.raises(InputError, match="from 0 to 2, one of the names east, north, south, or 'mean'"):
        classified.predict(FRAME, "west")


def test_site_names_that_are_numbers_are_sorted_as_numbers_and_names_precede_numbers():
    frame = {"x": [0.0, 1.0, 0.5, 0.2], "y": [0, 1, 1, 0], "site": [10, 2, 10, 0]}
    schema = {"target": "y", "classes": ["0", "1"], "ranges": {"x": [0, 1]}}
    shards = topdp.Shards.from_frame(frame, "site", frame, schema)
    assert shards.labels == ("0", "2", "10") and shards.counts == (1, 1, 2)
    assert shards.inputs[2, :2, 0].tolist() == [-1.0, 0.0] and len(shards.test_inputs) == 4
    result = topdp.train("mlp", shards, topology.complete(3), **QUIET)
    assert torch.equal(result.outputs(frame, "2"), result.outputs(frame, 1))
    assert result.predict(frame).dtype.kind == "i"  # the classes "0" and "1" were numbers


def test_files_of_sites_name_them(tmp_path):
    for name in ("north", "south"):
        (tmp_path / f"{name}.csv").write_text("age,ill\n" + "33,no\n71,yes\n" * 5)
    schema = {"target": "ill", "classes": ["no", "yes"], "ranges": {"age": [0, 100]}}
    shards = topdp.Shards.from_files([tmp_path / "*.csv"], schema=schema)
    assert shards.labels == ("north", "south") and shards.pooled().labels is None
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "north.csv").write_text("age,ill\n33,no\n")
    files = [tmp_path / "north.csv", tmp_path / "other" / "north.csv"]
    assert topdp.Shards.from_files(files, schema=schema).labels is None


def test_models_are_in_evaluation_mode():
    network = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    result = trained(shards_of(CLASSES), network, rounds=2)
    assert not result.model(0).training
    assert torch.equal(result.outputs(FRAME, 1), result.outputs(FRAME, 1))


def test_labels_of_several_questions_and_of_one():
    x = torch.randn(3, 100, 4)
    several = topdp.Shards.from_arrays([(part, (part[:, :2] > 0).long()) for part in x])
    result = trained(several, nn.Linear(4, 2), loss="bce")
    assert (result.predict(x[0]) == (x[0, :, :2] > 0).numpy()).mean() > 0.9
    assert result.predict_proba(x[0]).shape == (100, 2) and result.classes is None
    single = topdp.Shards.from_arrays([(part, (part[:, 0] > 0).long()) for part in x])
    result = trained(single, nn.Linear(4, 1), loss="bce")
    shares = result.predict_proba(x[0])
    assert np.allclose(shares.sum(1), 1) and ((shares[:, 1] > 0.5) == result.predict(x[0])).all()


def test_several_numbers_are_scaled_back_each_by_its_own_range():
    frame = {**FRAME, "double": 20 * FRAME["stay"] - 7}
    schema = {**INPUTS, "target": ["stay", "double"], "ignore": ["ill"]}
    schema["ranges"] = {**INPUTS["ranges"], "double": [-7, 313]}
    shards = topdp.Shards.from_frame(frame, "hospital", schema=schema)
    predicted = trained(shards, nn.Linear(5, 2), loss="mse", learning_rate=0.2, rounds=300).predict(FRAME)
    assert predicted.shape == (RECORDS, 2)
    assert np.abs(predicted[:, 0] - frame["stay"]).max() < 0.5
    assert np.abs(predicted[:, 1] - frame["double"]).max() < 5


def test_a_loss_of_the_user_has_outputs_only():
    result = trained(shards_of(NUMBERS), nn.Linear(5, 1), loss=lambda o, t: (o[:, 0] - t).abs(), rounds=2)
    assert result.outputs(FRAME).shape == (RECORDS, 1)
    for call in (result.predict, result.predict_proba):
        with pytest.raises(InputError, match=r"own loss. Call result\.|own loss.*outputs"):
            call(FRAME)


def test_images_are_scaled_as_in_training(tmp_path):
    images = GENERATOR.integers(0, 256, (90, 1, 8, 8), dtype=np.uint8)
    labels = (images.mean((1, 2, 3)) > 127).astype(np.int64)
    np.savez(tmp_path / "images.npz", train_inputs=images, train_labels=labels)
    changes = ["topology.kind=complete", "topology.agents=3", "rounds=2", "model.name=linear"]
    changes += [f'data.name="{tmp_path / "images.npz"}"', "method.name=no-noise", "privacy.clip=1"]
    folder = tmp_path / "run"
    run.run(config.read(changes=changes), folder)
    loaded = topdp.load(folder)
    outputs = loaded.outputs(images)
    assert torch.allclose(outputs, loaded.model()(torch.from_numpy(images / np.float32(255))))
    assert torch.equal(outputs, loaded.outputs(images.astype(int)))
    assert torch.allclose(outputs, loaded.outputs(images / 255.0))
    with pytest.raises(DataError, match="expected bytes from 0 to 255"):
        loaded.predict(images.astype(np.float32))


def test_features_are_computed_for_predictions(tmp_path):
    images = torch.rand(3, 20, 1, 8, 8)
    shards = topdp.Shards.from_arrays([(part, (part.mean((1, 2, 3)) > 0.5).long()) for part in images])
    result = trained(shards, "linear", features="scattering", rounds=2)
    loaded = topdp.load(result.save(tmp_path / "named.safetensors"))
    assert torch.equal(loaded.outputs(images[0]), result.outputs(images[0]))
    with pytest.raises(InputError, match="Expected no function of features"):
        topdp.load(tmp_path / "named.safetensors", features=torch.abs)

    def means(image):
        return image.mean(-1)

    result = trained(shards, "linear", features=means, rounds=2)
    result.save(tmp_path / "own.safetensors")
    assert torch.equal(result.outputs(images[0]), result.model()(means(images[0])))
    with pytest.raises(InputError, match=r"topdp.load\(..., features=function\)"):
        topdp.load(tmp_path / "own.safetensors").predict(images[0])
    loaded = topdp.load(tmp_path / "own.safetensors", features=means)
    assert torch.equal(loaded.outputs(images[0]), result.outputs(images[0]))


def test_token_ids_stay_whole_numbers():
    tokens = torch.randint(0, 20, (3, 30, 5))
    shards = topdp.Shards.from_arrays([(part, part[:, 0] % 2) for part in tokens], dtype=torch.int64)
    network = nn.Sequential(nn.Embedding(20, 4), nn.Flatten(), nn.Linear(20, 2))
    result = trained(shards, network, rounds=2)
    assert (result.predict(tokens[0].numpy()) == result.predict(tokens[0].double())).all()
    with pytest.raises(DataError, match=r"whole numbers, as in training, got "):
        result.predict(tokens[0] + 0.5)


@pytest.mark.parametrize("stored", ["folder", "file"])
def test_a_stored_result_is_the_same(stored, tmp_path):
    x = torch.randn(4, 40, 3)
    y = (x.sum(2) > 0).long()
    shards = topdp.Shards.from_arrays(list(zip(x[:3], y[:3], strict=True)), test=(x[3], y[3]))
    result = topdp.train(
        "mlp", shards, topology.ring(3), epsilon=2.0, rounds=4, clip=1.0, out=tmp_path / "run"
    )
    if stored == "file":
        assert result.save(tmp_path / "new" / "model.safetensors").exists()
    loaded = topdp.load(tmp_path / ("run" if stored == "folder" else "new/model.safetensors"))
    assert loaded.config == result.config and loaded.plan.digest() == result.plan.digest()
    assert loaded.privacy.details() == result.privacy.details()
    assert loaded.metrics == result.metrics and torch.equal(loaded.estimates, result.estimates)
    assert loaded.best[:3] == result.best[:3] and torch.equal(loaded.best.estimates, result.best.estimates)
    assert loaded.folder == (tmp_path / "run" if stored == "folder" else None)
    for agent in ("mean", 2):
        assert torch.equal(loaded.outputs(x[3], agent), result.outputs(x[3], agent))
        best = [part.outputs(x[3], agent, best=True) for part in (loaded, result)]
        assert torch.equal(*best)
    again = topdp.load(loaded.save(tmp_path / "again.safetensors"))
    assert torch.equal(again.outputs(x[3]), result.outputs(x[3])) and again.facts == result.facts


def test_a_file_has_no_records_and_nothing_pickled(classified, tmp_path):
    file = classified.save(tmp_path / "model.safetensors")
    content = file.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    assert {name for name in header if name != "__metadata__"} == {"plan.npz", "model.safetensors"}
    assert b"pickle" not in content and b"cnumpy" not in content
    known = json.loads(header["__metadata__"]["topdp-result"])
    assert set(known["texts"]) == {"config.toml", "privacy.json", "metrics.jsonl", "run.json"}
    assert "data" not in json.loads(known["texts"]["run.json"])  # no digest of records


def test_frozen_layers_are_in_a_file_and_are_compared_with_a_folder(tmp_path):
    torch.manual_seed(0)

    def network():
        return nn.Sequential(nn.Linear(5, 6).requires_grad_(False), nn.ReLU(), nn.Linear(6, 2))

    shards, first, other = shards_of(CLASSES), network(), network()
    result = trained(shards, first, rounds=2, out=tmp_path / "run")
    expected = result.outputs(FRAME)
    loaded = topdp.load(result.save(tmp_path / "own.safetensors"), network=other)
    assert torch.equal(loaded.outputs(FRAME), expected)
    assert torch.equal(topdp.load(tmp_path / "run", network=first).outputs(FRAME), expected)
    with pytest.raises(InputError, match="untrained parameters and buffers"):
        topdp.load(tmp_path / "run", network=other)
    # Layers need not be frozen again: the run states which parameters it trained.
    assert torch.equal(
        topdp.load(tmp_path / "own.safetensors", network=network().requires_grad_(True)).outputs(FRAME),
        expected,
    )


def test_the_factory_of_a_file_is_never_called(tmp_path, monkeypatch):
    (tmp_path / "factory_of_file.py").write_text(
        "import torch\ncalls = []\n"
        "def net(shape, outputs):\n    calls.append(shape)\n    return torch.nn.Linear(shape[0], outputs)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    x = GENERATOR.normal(size=(60, 3)).astype(np.float32)
    np.savez(tmp_path / "x.npz", train_inputs=x, train_labels=(x[:, 0] > 0).astype(int))
    changes = [
        f'data.name="{tmp_path / "x.npz"}"',
        "model.name=factory_of_file:net",
        "topology.kind=complete",
    ]
    changes += ["topology.agents=3", "rounds=2", "method.name=no-noise", "privacy.clip=1"]
    result = run.run(config.read(changes=changes), tmp_path / "run")
    result.save(tmp_path / "x.safetensors")
    import factory_of_file

    assert torch.equal(topdp.load(tmp_path / "run").outputs(x), result.outputs(x))
    factory_of_file.calls.clear()
    with pytest.raises(InputError, match=r"network=module.*is made by factory_of_file:net"):
        topdp.load(tmp_path / "x.safetensors")
    assert not factory_of_file.calls
    loaded = topdp.load(tmp_path / "x.safetensors", network=nn.Linear(3, 2))
    assert torch.equal(loaded.outputs(x), result.outputs(x))


def test_a_run_of_an_earlier_version_has_models_but_no_predictions(classified, tmp_path):
    result = trained(shards_of(CLASSES), "mlp", rounds=2, out=tmp_path / "run")
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    for name in ("prediction", "labels", "frozen"):
        del facts[name]
    (tmp_path / "run" / "run.json").write_text(json.dumps(facts))
    loaded = topdp.load(tmp_path / "run")
    assert torch.equal(loaded.model(0)[1].weight, result.model(0)[1].weight)
    with pytest.raises(InputError, match="earlier version of topdp"):
        loaded.predict(FRAME)


def test_a_preparation_is_the_same_after_json():
    whole = Preparation(
        shape=(3,),
        dtype="float32",
        schema=topdp.data.Schema.of(CLASSES),
        class_names=("no", "yes"),
        mean=(0.5,),
        deviation=(0.25,),
        bytes_divided=True,
        target_ranges=((0.0, 2.0), None),
    )
    assert Preparation.of(json.loads(json.dumps(whole.tree()))).tree() == whole.tree()
    assert whole.numbers(np.array([[-1.0, 5.0], [1.0, 6.0]])).tolist() == [[0.0, 5.0], [2.0, 6.0]]


def loaded_with(network):
    return lambda place, *_: topdp.load(place / "own.safetensors", network=network)


def predicted(records):
    return lambda place, classified, arrays: classified.predict(records)


def predicted_array(records):
    return lambda place, classified, arrays: arrays.predict(records)


def frame_shards(*arguments):
    return lambda *_: topdp.Shards.from_frame(*arguments[:2], schema=arguments[2:] and arguments[2])


WRONG = {
    "no schema": (frame_shards(FRAME, "hospital"), 2, "Fill in this text and save it as schema.toml"),
    "no such site column": (frame_shards(FRAME, "clinic", CLASSES), 5, "expected a column 'clinic'"),
    "sites as inputs": (frame_shards(FRAME, "ward", CLASSES), 5, "a column that the schema does not use"),
    "a site is missing": (
        frame_shards({**FRAME, "hospital": [None] * RECORDS}, "hospital", CLASSES),
        5,
        r"name of a site in 'hospital', got a missing value \(240 of 240",
    ),
    "an unknown class": (
        frame_shards({**FRAME, "ill": ["maybe"] * RECORDS}, "hospital", CLASSES),
        5,
        "expected one of the classes no, yes in 'ill', got 'maybe'",
    ),
    "a generator of records": (
        lambda *_: topdp.Shards.from_arrays(pair for pair in []),
        5,
        "Expected a list with the records of each agent, got generator",
    ),
    "a frame as shards": (
        lambda *_: topdp.train("mlp", FRAME, topology.ring(3)),
        2,
        "got dict. Make it with topdp.Shards.from_frame",
    ),
    "an unknown network": (
        lambda *_: topdp.train("mpl", shards_of(CLASSES), topology.ring(3)),
        2,
        "model.name: got 'mpl'. Did you mean 'mlp'",
    ),
    "a column is missing": (predicted({"age": [3.0]}), 5, r"expected the column 'pressure' of the schema"),
    "an array for a schema": (predicted(np.zeros((3, 5))), 5, "expected a frame, a dictionary of columns"),
    "a text for a number": (
        predicted({"age": ["old"], "pressure": [90], "ward": ["a"]}),
        5,
        "expected a number in 'age', got 'old'",
    ),
    "a missing value": (
        predicted({"age": [None], "pressure": [90], "ward": ["a"]}),
        5,
        "expected a value of 'age', got a missing value",
    ),
    "one record as numbers": (
        predicted({"age": 3, "pressure": 90, "ward": "a"}),
        5,
        "give lists of one value",
    ),
    "columns of other lengths": (
        predicted({"age": [3, 4], "pressure": [90], "ward": ["a"]}),
        5,
        "expected 2 values in 'pressure'",
    ),
    "no records": (predicted({"age": [], "pressure": [], "ward": []}), 5, "at least one record"),
    "a file that is no table": (predicted("new.json"), 5, "expected a table"),
    "a file that is missing": (predicted("new.csv"), 5, "which does not exist"),
    "a frame for arrays": (predicted_array({"x": [1.0]}), 5, "expected an array of shape .records, 3."),
    "a generator": (predicted_array(x for x in range(3)), 5, "Make a list of it first"),
    "texts": (predicted_array([["a", "b", "c"]]), 5, "expected numbers of shape"),
    "other columns": (predicted_array(np.zeros((4, 2))), 5, r"as in training, got shape \(4, 2\)"),
    "one record": (predicted_array(np.zeros(3)), 5, r"add an axis: record\[None\]"),
    "ragged lists": (predicted_array([[1, 2, 3], [1, 2]]), 5, "expected an array"),
    "not finite": (predicted_array([[1, 2, np.nan]]), 5, "expected finite inputs"),
    "an unknown agent": (lambda place, classified, arrays: classified.predict(FRAME, 3), 2, "from 0 to 2"),
    "best without test records": (
        lambda place, classified, arrays: classified.predict(FRAME, best=True),
        2,
        "Expected a run with test records",
    ),
    "a plot without test records": (lambda place, classified, arrays: classified.plot(), 2, "test records"),
    "no network": (loaded_with(None), 2, r"Call topdp.load\(path, network=module\)"),
    "a class as network": (loaded_with(nn.Linear), 2, "to be a torch module, got type"),
    "another network": (loaded_with(nn.Linear(4, 2)), 2, r"parameter 'weight' of shape \(2, 3\)"),
    "a network with other names": (loaded_with(nn.Sequential(nn.Linear(3, 2))), 2, "only the parameters 0."),
    "nothing to load": (lambda *_: topdp.load("nowhere"), 2, "found none"),
    "a folder without a run": (lambda place, *_: topdp.load(place / "empty"), 2, "could not read run.json"),
    "an export instead of a result": (
        lambda place, *_: topdp.load(place / "weights.safetensors"),
        2,
        "A file of result.export has weights only",
    ),
    "no safetensors": (lambda place, *_: topdp.load(place / "text.txt"), 2, "could not read it"),
    "another suffix": (lambda place, classified, _: classified.save("a.pt"), 2, r"ends in .safetensors"),
}


@pytest.fixture(scope="module")
def wrong_place(tmp_path_factory):
    place = tmp_path_factory.mktemp("wrong")
    x = torch.randn(3, 30, 3)
    shards = topdp.Shards.from_arrays([(part, (part.sum(1) > 0).long()) for part in x])
    arrays = trained(shards, nn.Linear(3, 2), rounds=2)
    arrays.save(place / "own.safetensors")
    arrays.export(place / "weights.safetensors")
    (place / "empty").mkdir()
    (place / "text.txt").write_text("no tensors")
    return place, arrays


@pytest.mark.parametrize("use", WRONG)
def test_wrong_records_and_files_are_explained(use, wrong_place, classified):
    call, code, message = WRONG[use]
    place, arrays = wrong_place
    with pytest.raises(TopdpError, match=message) as raised:
        call(place, classified, arrays)
    assert raised.value.code == code


def test_an_unknown_category_becomes_the_category_other(classified):
    records = {"age": [50.0, 50.0], "pressure": [120, 120], "ward": ["z", "other"]}
    outputs = classified.outputs(records)
    assert torch.equal(outputs[0], outputs[1])


def test_an_unfinished_run_has_no_model_yet(tmp_path):
    def stop(run):
        raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        trained(shards_of(CLASSES), "mlp", out=tmp_path / "run", callbacks=[stop])
    with pytest.raises(InputError, match="Finish it first"):
        topdp.load(tmp_path / "run")


def test_the_example_of_the_readme_predicts_well(capsys):
    text = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    places = {"__name__": "__main__"}
    exec(compile(block, "README.md", "exec"), places)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("['no' 'yes'] 0.99") or lines[0].startswith("['no' 'yes'] 1.0")
    days, frame = places["result"].predict(places["frame"]), places["frame"]
    assert 1 - np.square(days - frame["days"]).mean() / frame["days"].var() > 0.8
    assert places["result"].privacy.adaptive.largest <= 1 and len(places["shards"].labels) == 5
